package penstock;

import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;

/**
 * The standard error of the JVM, to which Spark copies what its Python workers write, less one thing: when a task fails
 * or a query ends, Spark closes the socket of a worker, and PySpark prints a traceback because it can read or write no
 * more. Such a traceback, with no frame of anybody else in it, goes to the log. Everything else is passed on as it comes.
 */
public final class WorkerErrors extends OutputStream {
  private static final Logger LOG = LogManager.getLogger(WorkerErrors.class);
  private static final String BEGIN = "Traceback (most recent call last):";
  private static final List<String> HUNG_UP = List.of("BrokenPipeError", "ConnectionResetError", "EOFError");
  private static final int MOST_LINES = 60;
  private static boolean installed = false;

  private final PrintStream out;
  private final ByteArrayOutputStream line = new ByteArrayOutputStream();
  private final List<String> held = new ArrayList<>();
  private boolean wasHungUp = false;

  public WorkerErrors(PrintStream out) {
    this.out = out;
  }

  /** Put it before standard error, once in a JVM. */
  public static synchronized void install() {
    if (!installed) {
      installed = true;
      System.setErr(new PrintStream(new WorkerErrors(System.err), true));
    }
  }

  @Override
  public synchronized void write(int value) {
    line.write(value);
    if (value == '\n') {
      take(line.toString(StandardCharsets.ISO_8859_1));
      line.reset();
    }
  }

  @Override
  public synchronized void write(byte[] bytes, int offset, int length) {
    for (int index = offset; index < offset + length; index++) {
      write(bytes[index]);
    }
  }

  @Override
  public synchronized void flush() {
    String begun = line.toString(StandardCharsets.ISO_8859_1);
    if (held.isEmpty() && !begun.isEmpty() && !BEGIN.startsWith(begun)) {
      pass(begun);
      line.reset();
    }
    out.flush();
  }

  private void take(String text) {
    String stripped = text.strip();
    if (stripped.equals(BEGIN)) {
      release();
      held.add(text);
      wasHungUp = false;
    } else if (held.isEmpty()) {
      boolean isBetween = wasHungUp && (stripped.isEmpty() || stripped.startsWith("During handling of the above"));
      wasHungUp = isBetween;
      if (!isBetween) {
        pass(text);
      }
    } else if (text.startsWith(" ") && isOfSpark(stripped) && held.size() < MOST_LINES) {
      held.add(text);
    } else if (held.toString().contains("/pyspark/") && HUNG_UP.stream().anyMatch(stripped::startsWith)) {
      LOG.warn("a Python worker lost its task: {}{}", String.join("", held), stripped);
      held.clear();
      wasHungUp = true;
    } else {
      release();
      pass(text);
    }
  }

  /** Of PySpark, or of Python itself. Lines of code stand below the frame they belong to; only frames say whose. */
  private static boolean isOfSpark(String frame) {
    return !frame.startsWith("File \"")
        || frame.contains("/pyspark/")
        || frame.startsWith("File \"<frozen ")
        || frame.contains("/lib/python3") && !frame.contains("-packages/");
  }

  private void release() {
    held.forEach(this::pass);
    held.clear();
  }

  private void pass(String text) {
    out.writeBytes(text.getBytes(StandardCharsets.ISO_8859_1));
  }
}
