package penstock;

import org.apache.hadoop.fs.LocalFileSystem;

/**
 * Hadoop's local file system, for `fs.file.impl`, without a checksum file beside each file that is written.
 *
 * <p>It stays a LocalFileSystem, which Hadoop insists upon. Checksum files that others wrote are still verified when
 * their files are read, and go when their files go or are written anew, so folders may be shared with programs that do
 * write them.
 */
public class LeanLocalFileSystem extends LocalFileSystem {
  public LeanLocalFileSystem() {
    super(new LeanRawFileSystem());
    setWriteChecksum(false);
  }
}
