package penstock;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.ObjectOutputStream;
import java.io.OutputStream;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.file.Files;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.UUID;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.function.Function2;
import org.apache.spark.deploy.SparkHadoopUtil;
import org.apache.spark.rdd.RDD;
import org.apache.spark.serializer.JavaSerializer;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;
import scala.reflect.ClassTag;

/**
 * Stages the rows of a batch as penstock.spark.sink.staging describes, without Python: tasks write them as an Arrow
 * stream, which is their result while it is short, and a file from then on.
 *
 * <p>A stager of projections applies them to the rows of every batch with the same columns. So Spark analyses and
 * plans them once, and not in every batch.
 */
public final class RowStager {
  private static final int MOST_ROWS = 10_000;
  private static final long MOST_BYTES = 1 << 20;

  private static final int MOST_STAGERS = 64;

  /** By the id of a stager: the projections of tasks that have ended, compiled and ready for the next task. */
  private static final Map<String, Deque<List<UnsafeProjection>>> IDLE =
      new LinkedHashMap<>() {
        private static final long serialVersionUID = 1L;

        @Override
        protected boolean removeEldestEntry(Map.Entry<String, Deque<List<UnsafeProjection>>> eldest) {
          return size() > MOST_STAGERS;
        }
      };

  private final String id = UUID.randomUUID().toString();
  private final StructType from;
  private final StructType to;
  private final byte[] levels;

  private RowStager(StructType from, StructType to, List<Level> levels) throws IOException {
    this.from = from;
    this.to = to;
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (ObjectOutputStream objects = new ObjectOutputStream(bytes)) {
      objects.writeObject(new ArrayList<>(levels));
    }
    this.levels = bytes.toByteArray();
  }

  /** A stager of rows as they are. */
  public static RowStager plain() throws IOException {
    return new RowStager(null, null, List.of());
  }

  /**
   * A stager that makes the rows of `encoded` from those of `frame`, a batch. Null if that takes more than projections
   * that depend on nothing but the row.
   */
  public static RowStager of(Dataset<?> encoded, Dataset<?> frame) throws IOException {
    LogicalPlan written = encoded.queryExecution().analyzed();
    if (!(frame.queryExecution().analyzed() instanceof LogicalRDD)
        || written.containsPattern(TreePattern.CURRENT_LIKE())
        || written.containsPattern(TreePattern.PLAN_EXPRESSION())) {
      return null;
    }
    List<Level> levels = new ArrayList<>();
    LogicalPlan plan = encoded.queryExecution().optimizedPlan();
    while (plan instanceof Project) {
      Project project = (Project) plan;
      Level level = new Level(project.projectList(), project.child().output());
      if (!level.expressions.forall(each -> each.deterministic())) {
        return null;
      }
      levels.add(level);
      plan = project.child();
    }
    Collections.reverse(levels);
    return plan instanceof LogicalRDD ? new RowStager(frame.schema(), encoded.schema(), levels) : null;
  }

  /** Whether it can take a batch with the columns of this one. */
  public boolean fits(Dataset<?> frame) {
    return frame.schema().equals(from) && frame.queryExecution().analyzed() instanceof LogicalRDD;
  }

  /**
   * Runs the tasks, and writes their results to the file `results`, one behind the other. `folder` is a path, or a URI
   * of Hadoop, for the files of tasks whose rows take more than `inlineBytes`.
   *
   * <p>The results do not go through py4j: answers above its buffer of 8 KB wait 40 ms for an acknowledgement of TCP.
   */
  public void stage(Dataset<?> frame, String folder, boolean isLocal, long inlineBytes, String results)
      throws IOException {
    LogicalPlan plan = frame.queryExecution().analyzed();
    boolean isCached = frame.storageLevel().isValid();
    RDD<InternalRow> rows =
        plan instanceof LogicalRDD && !isCached ? ((LogicalRDD) plan).rdd() : frame.queryExecution().toRdd();
    String zone = frame.sparkSession().sessionState().conf().sessionLocalTimeZone();
    StructType schema = to == null ? frame.schema() : to;
    Task task = new Task(id, levels, schema, zone, folder, isLocal, inlineBytes);
    List<byte[]> parts = rows.toJavaRDD().mapPartitionsWithIndex(task, false).collect();
    try (OutputStream file = Files.newOutputStream(java.nio.file.Path.of(results))) {
      for (byte[] part : parts) {
        file.write(part);
      }
    }
  }

  /** One projection. */
  private static final class Level implements Serializable {
    private static final long serialVersionUID = 1L;
    final Seq<Expression> expressions;
    final Seq<Attribute> input;

    @SuppressWarnings("unchecked") // named expressions are expressions
    Level(Seq<?> expressions, Seq<Attribute> input) {
      this.expressions = (Seq<Expression>) expressions;
      this.input = input;
    }

    UnsafeProjection projection() {
      return UnsafeProjection.create(expressions, input);
    }
  }

  /** What a task does with its rows. Its answer is nothing if there are none. */
  private static final class Task implements Function2<Integer, Iterator<InternalRow>, Iterator<byte[]>> {
    private static final long serialVersionUID = 1L;
    private final String id;
    private final byte[] levels;
    private final StructType schema;
    private final String zone;
    private final String folder;
    private final boolean isLocal;
    private final long inlineBytes;

    Task(
        String id,
        byte[] levels,
        StructType schema,
        String zone,
        String folder,
        boolean isLocal,
        long inlineBytes) {
      this.id = id;
      this.levels = levels;
      this.schema = schema;
      this.zone = zone;
      this.folder = folder;
      this.isLocal = isLocal;
      this.inlineBytes = inlineBytes;
    }

    @Override
    public Iterator<byte[]> call(Integer partition, Iterator<InternalRow> rows) throws IOException {
      if (!rows.hasNext()) {
        return Collections.emptyIterator();
      }
      List<UnsafeProjection> projections = projections();
      for (UnsafeProjection projection : projections) {
        projection.initialize(partition);
      }
      String name = String.format(
          Locale.ROOT,
          "partition-%05d-attempt-%d-%s.arrow",
          partition, TaskContext.get().taskAttemptId(), UUID.randomUUID().toString().substring(0, 8));
      long count = 0;
      ArrowWriter writer = ArrowWriter.create(schema, zone, true, false);
      try (VectorSchemaRoot root = writer.root();
          Spilling out = new Spilling(name);
          ArrowStreamWriter stream = new ArrowStreamWriter(root, null, Channels.newChannel(out))) {
        long held = 0;
        long bytes = 0;
        while (rows.hasNext()) {
          InternalRow row = rows.next();
          for (UnsafeProjection projection : projections) {
            row = projection.apply(row);
          }
          writer.write(row);
          count++;
          held++;
          // The size of a row of another kind is not at hand. Spark's operators give such rows only from few sources.
          bytes += row instanceof UnsafeRow ? ((UnsafeRow) row).getSizeInBytes() : MOST_BYTES / MOST_ROWS;
          if (held >= MOST_ROWS || bytes >= MOST_BYTES) {
            writer.finish();
            stream.writeBatch();
            writer.reset();
            held = 0;
            bytes = 0;
          }
        }
        if (held > 0) {
          writer.finish();
          stream.writeBatch();
        }
        stream.end();
        keep(projections);
        return Collections.singletonList(out.result(partition, count)).iterator();
      }
    }

    @SuppressWarnings("unchecked") // what the constructor of the stager has written
    private List<UnsafeProjection> projections() throws IOException {
      synchronized (IDLE) {
        Deque<List<UnsafeProjection>> idle = IDLE.get(id);
        if (idle != null && !idle.isEmpty()) {
          return idle.pop();
        }
      }
      ClassLoader loader = Thread.currentThread().getContextClassLoader();
      JavaSerializer serializer = new JavaSerializer(SparkEnv.get().conf());
      List<Level> read =
          (List<Level>)
              serializer.newInstance().deserialize(ByteBuffer.wrap(levels), loader, ClassTag.apply(ArrayList.class));
      List<UnsafeProjection> made = new ArrayList<>();
      for (Level level : read) {
        made.add(level.projection());
      }
      return made;
    }

    /** Not called after an error, which may leave a row half written in them. */
    private void keep(List<UnsafeProjection> projections) {
      if (!projections.isEmpty()) {
        synchronized (IDLE) {
          IDLE.computeIfAbsent(id, key -> new ArrayDeque<>()).push(projections);
        }
      }
    }

    /** Bytes in memory while they are few, else in a file. */
    private final class Spilling extends OutputStream {
      private final String name;
      private final ByteArrayOutputStream memory = new ByteArrayOutputStream();
      private OutputStream file;
      private long size;

      Spilling(String name) {
        this.name = name;
      }

      @Override
      public void write(int value) throws IOException {
        write(new byte[] {(byte) value}, 0, 1);
      }

      @Override
      public void write(byte[] bytes, int offset, int length) throws IOException {
        size += length;
        if (file == null && size > inlineBytes) {
          file = created();
          memory.writeTo(file);
          memory.reset();
        }
        (file == null ? memory : file).write(bytes, offset, length);
      }

      @Override
      public void close() throws IOException {
        if (file != null) {
          file.close();
          file = null;
        }
      }

      private OutputStream created() throws IOException {
        if (isLocal) {
          java.nio.file.Path path = java.nio.file.Path.of(folder);
          Files.createDirectories(path);
          return Files.newOutputStream(path.resolve(name));
        }
        Path path = new Path(folder, name);
        return path.getFileSystem(SparkHadoopUtil.get().conf()).create(path, false);
      }

      /** The part, as `parts_in` reads it. The file is complete then. */
      byte[] result(int partition, long rows) throws IOException {
        boolean isInFile = file != null;
        close();
        ByteArrayOutputStream bytes = new ByteArrayOutputStream(memory.size() + 256);
        DataOutputStream data = new DataOutputStream(bytes);
        data.writeInt(partition);
        data.writeLong(rows);
        data.writeLong(size);
        data.writeUTF(SparkEnv.get().blockManager().blockManagerId().host());
        data.writeUTF(isInFile ? name : "");
        data.writeInt(memory.size());
        memory.writeTo(data);
        return bytes.toByteArray();
      }
    }
  }
}
