package penstock;

import java.sql.Connection;
import java.sql.Driver;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.TimeUnit;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.ForeachWriter;
import org.apache.spark.sql.Row;

/**
 * Writes the rows of a query into a table of PostgreSQL, one by one, as real-time mode produces them.
 *
 * <p>A thread of each task commits all rows that arrived during its previous commit. With positions, each transaction
 * also moves the position of the source partition: the pointer of the record that the last row was made from, and the
 * number of that row among the rows of the record. Rows up to the position are in the table, and are skipped when they
 * come again, whoever sends them.
 *
 * <p>The columns of a row are text, as PostgreSQL parses it; with positions, topic (text), partition (int) and pointer
 * (long) follow.
 */
public final class SqlWriter extends ForeachWriter<Row> {
  private static final long serialVersionUID = 1L;
  private static final String POSITIONS = "penstock_spark_positions";
  private static final int MOST_QUEUED = 10_000;
  private static final int MOST_IN_A_TRANSACTION = 2_000;
  private static final long POLL_MS = 50;
  private static final long ABORT_MS = 10_000;
  private static final Object END = new Object();
  private static final Map<String, Deque<Connection>> IDLE = new ConcurrentHashMap<>();

  private final String url;
  private final HashMap<String, String> settings;
  private final String insert;
  private final int columns;
  private final boolean hasPositions;
  private transient Committer committer;

  public SqlWriter(String url, Map<String, String> settings, String insert, int columns, boolean hasPositions) {
    this.url = url;
    this.settings = new HashMap<>(settings);
    this.insert = insert;
    this.columns = columns;
    this.hasPositions = hasPositions;
  }

  @Override
  public boolean open(long partition, long epoch) {
    String query = TaskContext.get().getLocalProperty("sql.streaming.queryId");
    try {
      committer = new Committer(connection(), query);
    } catch (SQLException | ReflectiveOperationException problem) {
      throw new IllegalStateException("cannot write to " + url + ": " + problem.getMessage(), problem);
    }
    return true;
  }

  @Override
  public void process(Row row) {
    committer.put(row);
  }

  /** Returns when every row is committed. Spark commits its offsets only then. */
  @Override
  public void close(Throwable error) {
    Committer closing = committer;
    committer = null;
    if (closing != null) {
      closing.end(error != null);
    }
  }

  private Connection connection() throws SQLException, ReflectiveOperationException {
    Deque<Connection> idle = IDLE.computeIfAbsent(url, key -> new ConcurrentLinkedDeque<>());
    for (Connection found = idle.poll(); found != null; found = idle.poll()) {
      if (found.isValid(2)) {
        return found;
      }
      found.close();
    }
    // Not by DriverManager, which does not see drivers in the class loader of spark.jars.
    ClassLoader loader = Thread.currentThread().getContextClassLoader();
    Driver driver = (Driver) Class.forName("org.postgresql.Driver", true, loader).getDeclaredConstructor().newInstance();
    Properties properties = new Properties();
    properties.putAll(settings);
    properties.setProperty("stringtype", "unspecified");
    Connection made = driver.connect(url, properties);
    made.setAutoCommit(false);
    return made;
  }

  /** A place in one partition: the record, and the number of the row among those made from it. */
  private static final class Position {
    final long pointer;
    final int ordinal;

    Position(long pointer, int ordinal) {
      this.pointer = pointer;
      this.ordinal = ordinal;
    }

    boolean isAfter(Position other) {
      return pointer > other.pointer || (pointer == other.pointer && ordinal > other.ordinal);
    }
  }

  /** The rows of one source partition in one transaction. */
  private static final class Group {
    final String topic;
    final int partition;
    final List<Row> rows = new ArrayList<>();
    final List<Position> positions = new ArrayList<>();

    Group(String topic, int partition) {
      this.topic = topic;
      this.partition = partition;
    }
  }

  /** Commits the rows of one task. */
  private final class Committer implements Runnable {
    private final Connection connection;
    private final String query;
    private final BlockingQueue<Object> queue = new ArrayBlockingQueue<>(MOST_QUEUED);
    private final Map<String, Position> seen = new HashMap<>();
    private final Map<String, Position> stored = new HashMap<>();
    private final PreparedStatement insertion;
    private final Thread task = Thread.currentThread();
    private final Thread thread;
    private volatile Throwable problem;
    private volatile boolean isAborted;

    Committer(Connection connection, String query) throws SQLException {
      this.connection = connection;
      this.query = query;
      this.insertion = connection.prepareStatement(insert);
      this.thread = new Thread(this, "penstock-sql " + task.getName());
      this.thread.setDaemon(true);
      this.thread.start();
    }

    void put(Object row) {
      try {
        while (!queue.offer(row, POLL_MS, TimeUnit.MILLISECONDS)) {
          check();
        }
      } catch (InterruptedException stopped) {
        check();
        Thread.currentThread().interrupt();
        throw new IllegalStateException("the task was stopped", stopped);
      }
      check();
    }

    private void check() {
      Throwable found = problem;
      if (found != null) {
        throw new IllegalStateException("rows were not written: " + found.getMessage(), found);
      }
    }

    void end(boolean isAborting) {
      isAborted = isAborting;
      try {
        if (isAborting) {
          queue.clear();
          queue.offer(END);
          thread.join(ABORT_MS);
          check();
          return;
        }
        put(END);
        thread.join();
      } catch (InterruptedException stopped) {
        isAborted = true;
        check();
        Thread.currentThread().interrupt();
        throw new IllegalStateException("the task was stopped before its rows were written", stopped);
      }
      check();
    }

    @Override
    public void run() {
      List<Object> taken = new ArrayList<>();
      boolean isReusable = false;
      try {
        while (!isAborted) {
          taken.clear();
          taken.add(queue.take());
          queue.drainTo(taken, MOST_IN_A_TRANSACTION - 1);
          boolean isLast = taken.get(taken.size() - 1) == END;
          if (isLast) {
            taken.remove(taken.size() - 1);
          }
          if (!taken.isEmpty()) {
            write(taken);
          }
          if (isLast) {
            insertion.close();
            isReusable = !isAborted;
            return;
          }
        }
      } catch (Throwable found) {
        problem = found;
        if (!isAborted) {
          task.interrupt(); // It may wait for its next record until the batch ends.
        }
      } finally {
        release(isReusable);
      }
    }

    private void release(boolean isReusable) {
      if (isReusable) {
        IDLE.get(url).add(connection);
        return;
      }
      try {
        connection.close();
      } catch (SQLException ignored) {
        // It is of no use any more.
      }
    }

    private void write(List<Object> rows) throws SQLException {
      if (!hasPositions) {
        for (Object row : rows) {
          add((Row) row);
        }
      } else {
        for (Group group : grouped(rows)) {
          addNew(group);
        }
      }
      insertion.executeBatch();
      connection.commit();
    }

    private Iterable<Group> grouped(List<Object> rows) {
      Map<String, Group> groups = new HashMap<>();
      for (Object each : rows) {
        Row row = (Row) each;
        String topic = row.getString(columns);
        int partition = row.getInt(columns + 1);
        long pointer = row.getLong(columns + 2);
        String source = partition + "/" + topic;
        Position before = seen.get(source);
        if (before != null && pointer < before.pointer) {
          throw new IllegalStateException("record " + pointer + " of partition " + partition + " of " + topic
              + " came after record " + before.pointer + ": the query does not keep the order of its source");
        }
        int ordinal = before != null && before.pointer == pointer ? before.ordinal + 1 : 0;
        Position position = new Position(pointer, ordinal);
        seen.put(source, position);
        Group group = groups.computeIfAbsent(source, key -> new Group(topic, partition));
        group.rows.add(row);
        group.positions.add(position);
      }
      return groups.values();
    }

    /** Adds the rows that are not in the table, and moves the position past them. */
    private void addNew(Group group) throws SQLException {
      String source = group.partition + "/" + group.topic;
      Position last = group.positions.get(group.positions.size() - 1);
      Position known = stored.get(source);
      if (known != null && !last.isAfter(known)) {
        return;
      }
      if (known == null || !move(group, known, last)) {
        known = locked(group);
        if (last.isAfter(known)) {
          move(group, known, last);
        }
      }
      for (int index = 0; index < group.rows.size(); index++) {
        if (group.positions.get(index).isAfter(known)) {
          add(group.rows.get(index));
        }
      }
      stored.put(source, last.isAfter(known) ? last : known);
    }

    /** Moves the position, which locks it until the commit. False if it is not at `from`. */
    private boolean move(Group group, Position from, Position to) throws SQLException {
      try (PreparedStatement statement = connection.prepareStatement("UPDATE " + POSITIONS
          + " SET pointer = ?, ordinal = ? WHERE query = ? AND topic = ? AND part = ? AND pointer = ? AND ordinal = ?")) {
        statement.setLong(1, to.pointer);
        statement.setInt(2, to.ordinal);
        setSource(statement, 3, group);
        statement.setLong(6, from.pointer);
        statement.setInt(7, from.ordinal);
        return statement.executeUpdate() == 1;
      }
    }

    /** The stored position, locked until the commit. */
    private Position locked(Group group) throws SQLException {
      try (PreparedStatement statement = connection.prepareStatement(
          "INSERT INTO " + POSITIONS + " VALUES (?, ?, ?, -1, 0) ON CONFLICT DO NOTHING")) {
        setSource(statement, 1, group);
        statement.executeUpdate();
      }
      try (PreparedStatement statement = connection.prepareStatement("SELECT pointer, ordinal FROM " + POSITIONS
          + " WHERE query = ? AND topic = ? AND part = ? FOR UPDATE")) {
        setSource(statement, 1, group);
        try (ResultSet found = statement.executeQuery()) {
          found.next();
          return new Position(found.getLong(1), found.getInt(2));
        }
      }
    }

    private void setSource(PreparedStatement statement, int first, Group group) throws SQLException {
      statement.setString(first, query);
      statement.setString(first + 1, group.topic);
      statement.setInt(first + 2, group.partition);
    }

    private void add(Row row) throws SQLException {
      for (int index = 0; index < columns; index++) {
        insertion.setString(index + 1, row.isNullAt(index) ? null : row.getString(index));
      }
      insertion.addBatch();
    }
  }
}
