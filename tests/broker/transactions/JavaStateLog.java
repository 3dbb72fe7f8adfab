import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.coordinator.transaction.generated.TransactionLogKey;
import org.apache.kafka.coordinator.transaction.generated.TransactionLogValue;
import org.apache.kafka.coordinator.transaction.generated.TransactionLogValueJsonConverter;

/**
 * Records of the transaction state through Kafka's own code.
 *
 * "read" takes lines of a key and a value in hexadecimal, and prints for each the transactional id and the value as JSON.
 * "write" prints such lines: one value in each of the two versions.
 */
class JavaStateLog {
    public static void main(String[] arguments) throws IOException {
        if (arguments[0].equals("write")) write();
        else new String(System.in.readAllBytes()).lines().forEach(JavaStateLog::read);
    }

    static void read(String line) {
        String[] words = line.split(" ");
        ByteBuffer key = ByteBuffer.wrap(HexFormat.of().parseHex(words[0]));
        ByteBuffer value = ByteBuffer.wrap(HexFormat.of().parseHex(words[1]));
        String id = new TransactionLogKey(new ByteBufferAccessor(key), key.getShort()).transactionalId();
        short version = value.getShort();
        TransactionLogValue read = new TransactionLogValue(new ByteBufferAccessor(value), version);
        ObjectNode json = (ObjectNode) TransactionLogValueJsonConverter.write(read, version);
        json.put("version", version).put("transactionalId", id).put("left", key.remaining() + value.remaining());
        System.out.println(json);
    }

    static void write() {
        TransactionLogValue value = new TransactionLogValue()
            .setProducerId(4001)
            .setProducerEpoch((short) 7)
            .setTransactionTimeoutMs(60000)
            .setTransactionStatus((byte) 1)
            .setTransactionPartitions(List.of(
                new TransactionLogValue.PartitionsSchema().setTopic("orders").setPartitionIds(List.of(0, 3)),
                new TransactionLogValue.PartitionsSchema().setTopic("bills").setPartitionIds(List.of(1))))
            .setTransactionLastUpdateTimestampMs(1700000000123L)
            .setTransactionStartTimestampMs(1700000000000L);
        print((short) 0, value);
        print((short) 1, value.setPreviousProducerId(4000).setNextProducerId(4002).setClientTransactionVersion((short) 2));
    }

    static void print(short version, TransactionLogValue value) {
        byte[] key = MessageUtil.toVersionPrefixedBytes((short) 0, new TransactionLogKey().setTransactionalId("naïve-id"));
        byte[] bytes = MessageUtil.toVersionPrefixedBytes(version, value);
        System.out.println(HexFormat.of().formatHex(key) + " " + HexFormat.of().formatHex(bytes));
    }
}
