import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.util.List;
import java.util.Properties;

/** Debezium's engine: reads changes of one table until that of one key, and prints how many came in how many seconds. */
public final class DebeziumBacklog {
    private static final class Counter implements DebeziumEngine.ChangeConsumer<ChangeEvent<String, String>> {
        private final String lastKey;
        private long first;
        private long count;

        Counter(String lastKey) {
            this.lastKey = lastKey;
        }

        @Override
        public void handleBatch(
                List<ChangeEvent<String, String>> events,
                DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer)
                throws InterruptedException {
            boolean isOver = events.stream().anyMatch(event -> lastKey.equals(event.key()));
            if (first == 0) {
                first = System.nanoTime(); // the first batch is not counted: it was read before
            } else {
                count += events.size();
            }
            committer.markProcessed(events.get(events.size() - 1)); // stands for those before it
            committer.markBatchFinished();
            if (isOver) {
                System.out.printf("{\"changes\":%d,\"seconds\":%f}%n", count, (System.nanoTime() - first) / 1e9);
                System.out.flush();
                new Thread(DebeziumBacklog::end).start();
            }
        }
    }

    private static DebeziumEngine<ChangeEvent<String, String>> engine;

    private static void end() {
        try {
            engine.close(); // stores the offset
        } catch (Exception error) {
            error.printStackTrace();
        }
        System.exit(0);
    }

    /** Arguments: the last key as JSON, then properties as NAME=VALUE. */
    public static void main(String[] arguments) {
        Properties properties = new Properties();
        for (int index = 1; index < arguments.length; index++) {
            String[] parts = arguments[index].split("=", 2);
            properties.setProperty(parts[0], parts[1]);
        }
        engine = DebeziumEngine.create(Json.class).using(properties).notifying(new Counter(arguments[0])).build();
        engine.run();
        System.exit(1);
    }
}
