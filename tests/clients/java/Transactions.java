import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Consumes, transforms and produces in transactions; aborts one; lets a record be refused in one; fences a zombie. */
public final class Transactions {
    private static final Map<String, Object> COMMITTED = Map.of("isolation.level", "read_committed");

    public static void main(String[] arguments) throws Exception {
        Client client = new Client(arguments[0]);
        String source = arguments[1];
        String sink = arguments[2];
        String group = arguments[3];
        String name = arguments[4];
        TopicPartition from = new TopicPartition(source, 0);
        Map<String, Object> seen = new TreeMap<>();

        try (KafkaProducer<String, String> producer = client.producer(Map.of())) {
            producer.send(new ProducerRecord<>(source, "1")).get();
            producer.send(new ProducerRecord<>(source, "2")).get();
        }
        try (KafkaProducer<String, String> producer = client.producer(Map.of("transactional.id", name));
             KafkaConsumer<String, String> consumer = client.consumer(group, COMMITTED)) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            Client.read(consumer, 2);

            producer.beginTransaction();
            producer.send(new ProducerRecord<>(sink, "aborted")).get();
            producer.sendOffsetsToTransaction(Map.of(from, new OffsetAndMetadata(1)), consumer.groupMetadata());
            seen.put("ongoing", stateOf(client, name));
            producer.abortTransaction();
            seen.put("committedAfterAbort", String.valueOf(consumer.committed(Set.of(from)).get(from)));

            producer.beginTransaction();
            seen.put("tooLarge", Client.refusal(() -> producer.send(new ProducerRecord<>(sink, "x".repeat(5000))).get()));
            seen.put("commitIsRefused", !Client.refusal(producer::commitTransaction).equals("none"));
            producer.abortTransaction();

            producer.beginTransaction();
            producer.send(new ProducerRecord<>(sink, "committed"));
            producer.sendOffsetsToTransaction(Map.of(from, new OffsetAndMetadata(2)), consumer.groupMetadata());
            producer.commitTransaction();
            seen.put("committed", consumer.committed(Set.of(from)).get(from).offset());

            try (KafkaProducer<String, String> heir = client.producer(Map.of("transactional.id", name))) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(sink, "from the zombie")).get();
                heir.initTransactions();
                seen.put("fenced", Client.refusal(producer::commitTransaction));
                heir.beginTransaction();
                heir.send(new ProducerRecord<>(sink, "from the heir"));
                heir.commitTransaction();
            }
        }
        try (KafkaConsumer<String, String> consumer = client.consumer(group + "-committed", COMMITTED)) {
            consumer.subscribe(List.of(sink));
            seen.put("readCommitted", Client.values(Client.read(consumer, 2)));
        }
        try (KafkaConsumer<String, String> consumer = client.consumer(group + "-everything", Map.of())) {
            consumer.subscribe(List.of(sink));
            seen.put("readUncommitted", Client.values(Client.read(consumer, 4)));
        }
        Client.tell(seen);
    }

    private static String stateOf(Client client, String name) throws Exception {
        try (Admin admin = client.admin()) {
            for (TransactionListing listing : admin.listTransactions(new ListTransactionsOptions()).all().get()) {
                if (listing.transactionalId().equals(name)) {
                    return listing.state().toString();
                }
            }
        }
        return "not listed";
    }
}
