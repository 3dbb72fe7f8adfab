import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * A producer and several consumers that work while somebody restarts the broker. A line "check" on the input is answered
 * once a record that was sent after it has been acknowledged and has come to every consumer; "stop" with what
 * became of them all.
 */
public final class Restarts {
    private static final Duration PACE = Duration.ofMillis(2);

    private static final Map<String, Object> QUICK_TO_RECONNECT =
        Map.of("reconnect.backoff.max.ms", 100, "retry.backoff.max.ms", 200);

    private static volatile boolean sending = true;
    private static volatile boolean sentAll = false;
    private static final AtomicInteger sent = new AtomicInteger();
    private static final Set<Integer> acknowledged = ConcurrentHashMap.newKeySet();
    private static final Map<String, String> failures = Collections.synchronizedMap(new TreeMap<>());

    /** A consumer, or the consumers of one group together: what they have seen. */
    private static final class Reader {
        final String name;
        final Set<Integer> seen = ConcurrentHashMap.newKeySet();
        final AtomicInteger repeated = new AtomicInteger();
        final List<Thread> threads = new ArrayList<>();

        Reader(String name) {
            this.name = name;
        }

        void start(KafkaConsumer<String, String> consumer) {
            Thread thread = new Thread(() -> {
                try (consumer) {
                    while (!sentAll || !seen.containsAll(acknowledged)) {
                        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                            if (!seen.add(Integer.valueOf(record.value()))) {
                                repeated.incrementAndGet();
                            }
                        }
                    }
                } catch (RuntimeException error) {
                    failures.put(name, error.toString());
                }
            });
            threads.add(thread);
            thread.start();
        }
    }

    public static void main(String[] arguments) throws Exception {
        Client client = new Client(arguments[0]);
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        List<TopicPartition> places =
            IntStream.range(0, partitions).mapToObj(number -> new TopicPartition(topic, number)).toList();
        List<Reader> readers = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            Reader reader = new Reader("assigned-" + number);
            KafkaConsumer<String, String> consumer = client.consumer("unused", QUICK_TO_RECONNECT);
            consumer.assign(places);
            reader.start(consumer);
            readers.add(reader);
        }
        Reader group = new Reader("subscribed");
        for (int number = 0; number < 2; number++) {
            Map<String, Object> settings = new TreeMap<>(QUICK_TO_RECONNECT);
            settings.putAll(Map.of("enable.auto.commit", true, "auto.commit.interval.ms", 200));
            KafkaConsumer<String, String> consumer = client.consumer(arguments[3], settings);
            consumer.subscribe(List.of(topic));
            group.start(consumer);
        }
        readers.add(group);
        Thread producing = new Thread(() -> produce(client, topic, partitions));
        producing.start();
        Scanner input = new Scanner(System.in);
        while (input.hasNextLine() && input.nextLine().equals("check")) {
            int mark = sent.get();
            Client.eventually("everybody has gone on", () -> {
                pause();
                Set<Integer> news = new HashSet<>(acknowledged);
                news.removeIf(number -> number < mark);
                return !failures.isEmpty()
                    || !news.isEmpty() && readers.stream().noneMatch(reader -> Collections.disjoint(reader.seen, news));
            });
            Client.tell(Map.of("failures", failures));
        }
        sending = false;
        producing.join();
        sentAll = true;
        Map<String, Integer> repeated = new TreeMap<>();
        Map<String, Integer> missing = new TreeMap<>();
        for (Reader reader : readers) {
            for (Thread thread : reader.threads) {
                thread.join(Client.TIMEOUT.toMillis());
            }
            Set<Integer> lost = new HashSet<>(acknowledged);
            lost.removeAll(reader.seen);
            missing.put(reader.name, lost.size());
            repeated.put(reader.name, reader.repeated.get());
        }
        Client.tell(Map.of(
            "acknowledged", acknowledged.size(),
            "sent", sent.get(),
            "failures", failures,
            "missing", missing,
            "repeated", repeated));
        System.exit(0);
    }

    private static void produce(Client client, String topic, int partitions) {
        Map<String, Object> settings = new TreeMap<>(QUICK_TO_RECONNECT);
        settings.putAll(Map.of("acks", "all", "linger.ms", 1, "delivery.timeout.ms", 120_000));
        try (KafkaProducer<String, String> producer = client.producer(settings)) {
            while (sending) {
                int number = sent.getAndIncrement();
                producer.send(new ProducerRecord<>(topic, number % partitions, null, "" + number), (place, error) -> {
                    if (error == null) {
                        acknowledged.add(number);
                    } else {
                        failures.put("producer", error.toString());
                    }
                });
                pause();
            }
        }
    }

    private static void pause() {
        try {
            Thread.sleep(PACE);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
