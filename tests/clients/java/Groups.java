import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Two members of a group share a topic of four partitions; one leaves; a later one continues behind the commits. */
public final class Groups {
    private static final class Member implements ConsumerRebalanceListener, AutoCloseable {
        final KafkaConsumer<String, String> consumer;
        final Set<Integer> taken = new TreeSet<>();
        final List<String> received = new ArrayList<>();

        Member(Client client, String group, String topic, String assignor) {
            consumer = client.consumer(group, Map.of("partition.assignment.strategy", assignor));
            consumer.subscribe(List.of(topic), this);
        }

        void step() {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(20))) {
                received.add(record.partition() + " " + record.value());
            }
        }

        Set<Integer> partitions() {
            Set<Integer> numbers = new TreeSet<>();
            consumer.assignment().forEach(place -> numbers.add(place.partition()));
            return numbers;
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
            revoked.forEach(place -> taken.add(place.partition()));
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
        }

        @Override
        public void close() {
            consumer.close();
        }
    }

    public static void main(String[] arguments) throws Exception {
        Client client = new Client(arguments[0]);
        String topic = arguments[1];
        String group = arguments[2];
        String assignor = arguments[3];
        Map<String, Object> seen = new TreeMap<>();
        try (Member first = new Member(client, group, topic, assignor)) {
            Client.eventually("the first has all", () -> {
                first.step();
                return first.partitions().size() == 4;
            });
            try (Member second = new Member(client, group, topic, assignor)) {
                Client.eventually("two each", () -> {
                    first.step();
                    second.step();
                    return first.partitions().size() == 2 && second.partitions().size() == 2;
                });
                Set<Integer> all = new HashSet<>(first.partitions());
                all.addAll(second.partitions());
                seen.put("together", new TreeSet<>(all));
                seen.put("takenFromTheFirst", first.taken.size());
                try (KafkaProducer<String, String> producer = client.producer(Map.of())) {
                    for (int partition = 0; partition < 4; partition++) {
                        producer.send(new ProducerRecord<>(topic, partition, null, "value")).get();
                    }
                }
                Client.eventually("all records", () -> {
                    first.step();
                    second.step();
                    return first.received.size() + second.received.size() == 4;
                });
                Set<String> received = new TreeSet<>(first.received);
                received.addAll(second.received);
                seen.put("received", received);
                second.consumer.commitSync();
            }
            Client.eventually("the first has all again", () -> {
                first.step();
                return first.partitions().size() == 4;
            });
            Map<TopicPartition, OffsetAndMetadata> commits = Map.of(
                new TopicPartition(topic, 0), new OffsetAndMetadata(0, "by hand"),
                new TopicPartition(topic, 1), new OffsetAndMetadata(1),
                new TopicPartition(topic, 2), new OffsetAndMetadata(1),
                new TopicPartition(topic, 3), new OffsetAndMetadata(1));
            first.consumer.commitSync(commits);
            // Only the one: a question that is already under way, from before the commit, would be shared.
            TopicPartition one = new TopicPartition(topic, 0);
            seen.put("metadata", first.consumer.committed(Set.of(one)).get(one).metadata());
        }
        try (Member third = new Member(client, group, topic, assignor)) {
            Client.eventually("what was not committed", () -> {
                third.step();
                return !third.received.isEmpty();
            });
            seen.put("third", third.received);
        }
        Client.tell(seen);
    }
}
