package penstock;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.Set;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Local files whose permissions are set by a call to the system. Hadoop starts a chmod process for each file and
 * folder that it makes, unless its native library is installed, which the pip package of Spark does not bring.
 */
public class LeanRawFileSystem extends RawLocalFileSystem {
  private static final PosixFilePermission[] FROM_THE_RIGHT = {
    PosixFilePermission.OTHERS_EXECUTE, PosixFilePermission.OTHERS_WRITE, PosixFilePermission.OTHERS_READ,
    PosixFilePermission.GROUP_EXECUTE, PosixFilePermission.GROUP_WRITE, PosixFilePermission.GROUP_READ,
    PosixFilePermission.OWNER_EXECUTE, PosixFilePermission.OWNER_WRITE, PosixFilePermission.OWNER_READ,
  };

  @Override
  public void setPermission(Path path, FsPermission permission) throws IOException {
    if (permission.getStickyBit()) { // Java has no word for it
      super.setPermission(path, permission);
      return;
    }
    Set<PosixFilePermission> wanted = EnumSet.noneOf(PosixFilePermission.class);
    for (int bit = 0; bit < FROM_THE_RIGHT.length; bit++) {
      if ((permission.toShort() >> bit & 1) == 1) {
        wanted.add(FROM_THE_RIGHT[bit]);
      }
    }
    try {
      Files.setPosixFilePermissions(pathToFile(path).toPath(), wanted);
    } catch (UnsupportedOperationException noPosix) {
      super.setPermission(path, permission);
    } catch (NoSuchFileException missing) {
      throw asHadoop(missing);
    }
  }

  private static FileNotFoundException asHadoop(NoSuchFileException missing) {
    FileNotFoundException error = new FileNotFoundException(missing.getFile() + " does not exist");
    error.initCause(missing);
    return error;
  }
}
