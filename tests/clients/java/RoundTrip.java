import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeader;

/** Sends records with every codec and every level of acknowledgement, reads them, and finds places in the topic. */
public final class RoundTrip {
    public static void main(String[] arguments) throws Exception {
        Client client = new Client(arguments[0]);
        String topic = arguments[1];
        String small = arguments[2];
        TopicPartition place = new TopicPartition(topic, 0);
        Map<String, Object> seen = new TreeMap<>();

        // A new partition that has no leader yet loses what is sent with acks=0. One that tells its end has a leader.
        try (KafkaConsumer<String, String> reader = client.consumer("nobody", Map.of())) {
            reader.endOffsets(List.of(place));
        }
        List<Long> offsets = new ArrayList<>();
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            for (String acks : List.of("0", "1", "all")) {
                Map<String, Object> settings = Map.of(
                    "compression.type", codec, "acks", acks, "enable.idempotence", acks.equals("all"), "linger.ms", 20);
                try (KafkaProducer<String, String> producer = client.producer(settings)) {
                    List<Future<RecordMetadata>> sent = new ArrayList<>();
                    for (int number = 0; number < 10; number++) {
                        String value = codec + " " + acks + " " + number + " " + "x".repeat(100);
                        long timestamp = 1_700_000_000_000L + offsets.size() + number;
                        ProducerRecord<String, String> record =
                            new ProducerRecord<>(topic, 0, timestamp, codec, value);
                        record.headers().add(new RecordHeader("codec", codec.getBytes(StandardCharsets.UTF_8)));
                        sent.add(producer.send(record));
                    }
                    for (Future<RecordMetadata> one : sent) {
                        offsets.add(one.get().offset());
                    }
                }
            }
        }
        seen.put("offsets", offsets);

        try (KafkaConsumer<String, String> consumer = client.consumer("unused", Map.of())) {
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            List<String> received = new ArrayList<>();
            Client.read(consumer, 150).forEach(record -> received.add(
                record.offset() + " " + record.timestamp() + " " + record.key() + " "
                    + new String(record.headers().lastHeader("codec").value(), StandardCharsets.UTF_8) + " "
                    + record.value().replace("x", "")));
            seen.put("received", received);
            seen.put("beginning", consumer.beginningOffsets(List.of(place)).get(place));
            seen.put("end", consumer.endOffsets(List.of(place)).get(place));
            seen.put("atTime", consumer.offsetsForTimes(Map.of(place, 1_700_000_000_042L)).get(place).offset());
            consumer.seek(place, 7);
            seen.put("sought", Client.read(consumer, 1).get(0).offset());
        }

        try (KafkaProducer<String, String> producer = client.producer(Map.of())) {
            seen.put("tooLarge", Client.refusal(() -> producer.send(new ProducerRecord<>(small, "x".repeat(5000))).get()));
        }
        Client.tell(seen);
    }
}
