import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.SimpleRecord;

/**
 * Record batches through the Java client's own code.
 *
 * "read" takes batches on standard input and prints each record's value in Base64, a line each.
 * "write" takes values that way and answers one batch of them for each codec, as bytes.
 */
class JavaBatches {
    public static void main(String[] arguments) throws IOException {
        byte[] input = System.in.readAllBytes();
        if (arguments[0].equals("read")) read(input);
        else write(new String(input).lines().toList());
    }

    static void read(byte[] input) {
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(input)).batches()) {
            batch.ensureValid();
            for (Record record : batch) {
                byte[] value = new byte[record.valueSize()];
                record.value().get(value);
                System.out.println(Base64.getEncoder().encodeToString(value));
            }
        }
    }

    static void write(List<String> lines) throws IOException {
        SimpleRecord[] records =
            lines.stream().map(line -> new SimpleRecord(0, null, Base64.getDecoder().decode(line))).toArray(SimpleRecord[]::new);
        var out = Channels.newChannel(System.out);
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd"))
            out.write(MemoryRecords.withRecords(Compression.of(codec).build(), records).buffer());
    }
}
