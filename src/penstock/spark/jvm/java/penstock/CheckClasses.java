package penstock;

import java.util.Enumeration;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;

/**
 * Loads and links every class of some jars beside what is on the class path, and ends with 1 at the first that does not
 * fit, saying which and why: a connector may be of another version than the Spark it is to serve.
 */
public final class CheckClasses {
  private CheckClasses() {}

  public static void main(String[] jars) throws Exception {
    int classes = 0;
    for (String name : jars) {
      try (JarFile jar = new JarFile(name)) {
        for (Enumeration<JarEntry> entries = jar.entries(); entries.hasMoreElements();) {
          String entry = entries.nextElement().getName();
          if (entry.endsWith(".class") && !entry.startsWith("META-INF/")) {
            check(entry.substring(0, entry.length() - ".class".length()).replace('/', '.'));
            classes++;
          }
        }
      }
    }
    System.out.println(classes);
  }

  private static void check(String name) {
    try {
      // Asking for its methods makes the JVM link the class, and look up all that they take and give.
      Class.forName(name, false, CheckClasses.class.getClassLoader()).getDeclaredMethods();
    } catch (ClassNotFoundException | LinkageError error) {
      System.err.println(name + ": " + error);
      System.exit(1);
    }
  }
}
