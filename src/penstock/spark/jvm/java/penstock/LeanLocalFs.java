package penstock;

import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.channels.FileChannel;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.EnumSet;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.Options.ChecksumOpt;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * The same file system by Hadoop's other interface, for `fs.AbstractFileSystem.file.impl`. Spark writes its checkpoints
 * through it: into a file of another name, which is then renamed.
 *
 * <p>What Spark rests upon is that such a rename happens at once or not at all, and that of two that may not overwrite
 * one fails. Hadoop looks whether the name is taken and then renames; here the system decides, in one step. With
 * `penstock.local.sync` set, what was renamed also survives a power cut: a batch must not run before its offsets do, or
 * it could be another batch of the same number when it runs again.
 */
public class LeanLocalFs extends DelegateToFileSystem {
  public static final String SYNC = "penstock.local.sync";

  private final LeanLocalFileSystem files;
  private final boolean sync;

  /** The constructor that Hadoop calls. */
  public LeanLocalFs(URI uri, Configuration configuration) throws IOException, URISyntaxException {
    this(new LeanLocalFileSystem(), configuration);
  }

  private LeanLocalFs(LeanLocalFileSystem files, Configuration configuration) throws IOException, URISyntaxException {
    super(FsConstants.LOCAL_FS_URI, files, configuration, FsConstants.LOCAL_FS_URI.getScheme(), false);
    this.files = files;
    this.sync = configuration.getBoolean(SYNC, false);
  }

  @Override
  public int getUriDefaultPort() {
    return -1;
  }

  @Override
  public boolean isValidName(String path) {
    return true; // colons too: they mean nothing to a local disk
  }

  @Override
  public FSDataOutputStream createInternal(Path path, EnumSet<CreateFlag> flags, FsPermission permission,
      int bufferSize, short replication, long blockSize, Progressable progress, ChecksumOpt checksum,
      boolean createParent) throws IOException {
    if (flags.contains(CreateFlag.OVERWRITE)) {
      Files.deleteIfExists(checksumOf(path)); // it would belong to what is about to be overwritten
    }
    return super.createInternal(
        path, flags, permission, bufferSize, replication, blockSize, progress, checksum, createParent);
  }

  @Override
  public void renameInternal(Path source, Path target, boolean overwrite) throws IOException {
    File from = files.pathToFile(source);
    File to = files.pathToFile(target);
    if (!Files.isRegularFile(from.toPath()) || from.equals(to) || to.isDirectory()) {
      super.renameInternal(source, target, overwrite);
      return;
    }
    if (sync) {
      sync(from.toPath(), StandardOpenOption.WRITE);
    }
    // Before the file that it belongs to is gone: if the machine stops in between, a file without a checksum is read,
    // one with a checksum of something else is not.
    Files.deleteIfExists(checksumOf(target));
    try {
      if (overwrite || !linked(from.toPath(), to.toPath())) {
        Files.move(from.toPath(), to.toPath(), StandardCopyOption.ATOMIC_MOVE);
      }
    } catch (FileAlreadyExistsException taken) {
      throw new org.apache.hadoop.fs.FileAlreadyExistsException("rename destination " + target + " already exists.");
    } catch (NoSuchFileException missing) {
      FileNotFoundException error = new FileNotFoundException("rename " + source + " to " + target + ": no such folder");
      error.initCause(missing);
      throw error;
    }
    Files.deleteIfExists(checksumOf(source));
    if (sync) {
      sync(to.toPath().getParent(), StandardOpenOption.READ);
    }
  }

  /** Give the file its new name if that is free, and take the old one away. False on disks that have no links. */
  private static boolean linked(java.nio.file.Path from, java.nio.file.Path to) throws IOException {
    try {
      Files.createLink(to, from);
    } catch (FileAlreadyExistsException | NoSuchFileException error) {
      throw error;
    } catch (UnsupportedOperationException | IOException noLinks) {
      if (Files.exists(to)) {
        throw new FileAlreadyExistsException(to.toString());
      }
      return false;
    }
    Files.delete(from);
    return true;
  }

  private static void sync(java.nio.file.Path path, StandardOpenOption access) throws IOException {
    try (FileChannel channel = FileChannel.open(path, access)) {
      channel.force(true);
    }
  }

  private java.nio.file.Path checksumOf(Path path) {
    return files.pathToFile(files.getChecksumFile(path)).toPath();
  }
}
