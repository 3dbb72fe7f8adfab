import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs one program after the other in one JVM, which has then loaded what they have in common. Each line of standard input
 * is a program and its arguments, as an array in JSON; the answer is one line: whether it failed, and what it printed.
 */
public final class Programs {
    private static final class Ended extends RuntimeException {
        final int code;

        Ended(int code) {
            this.code = code;
        }
    }

    public static void main(String[] arguments) throws Exception {
        Exit.setExitProcedure((code, message) -> {
            throw new Ended(code);
        });
        ObjectMapper json = new ObjectMapper();
        PrintStream answers = System.out;
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            String[] order = json.readValue(line, String[].class);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream sink = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(sink);
            System.setErr(sink);
            boolean failed = false;
            try {
                Class.forName(order[0])
                    .getMethod("main", String[].class)
                    .invoke(null, (Object) Arrays.copyOfRange(order, 1, order.length));
            } catch (InvocationTargetException wrapped) {
                Throwable cause = wrapped.getCause();
                failed = !(cause instanceof Ended ended) || ended.code != 0;
                if (!(cause instanceof Ended)) {
                    cause.printStackTrace(sink);
                }
            }
            sink.flush();
            answers.println(json.writeValueAsString(
                Map.of("failed", failed, "printed", printed.toString(StandardCharsets.UTF_8))));
            answers.flush();
        }
    }
}
