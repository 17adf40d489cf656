/*
 * Runs the user's Java for kernel_relay.py, which describes the protocol: Java's own jshell, in this process. Requests
 * are read from descriptor 3, events are written as JSON lines to descriptor 4; descriptors 1 and 2 belong to the
 * user's code. A Java process cannot change its environment, so variables are system properties, as in E2B. Started
 * from source (java kernel.java), so it is one file and needs no build.
 */
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import jdk.jshell.*;
import jdk.jshell.Snippet.SubKind;
import jdk.jshell.execution.LocalExecutionControlProvider;

class Kernel {
	private static final List<String> IMPORTS = List.of("java.io.*", "java.math.*", "java.net.*", "java.nio.file.*", "java.util.*",
		"java.util.concurrent.*", "java.util.function.*", "java.util.regex.*", "java.util.stream.*");
	private static final Set<SubKind> VALUES = EnumSet.of(SubKind.TEMP_VAR_EXPRESSION_SUBKIND, SubKind.VAR_VALUE_SUBKIND,
		SubKind.OTHER_EXPRESSION_SUBKIND, SubKind.ASSIGNMENT_SUBKIND);

	private final PrintStream events;
	private final JShell shell;
	private volatile boolean busy, interrupted;

	Kernel() throws IOException {
		events = new PrintStream(new FileOutputStream("/dev/fd/4"), false, StandardCharsets.UTF_8);
		shell = JShell.builder().executionEngine(new LocalExecutionControlProvider(), Map.of()).build();
		System.getenv().forEach((name, value) -> System.getProperties().putIfAbsent(name, value));
		for (String each : IMPORTS)
			shell.eval("import " + each + ";");
		sun.misc.Signal.handle(new sun.misc.Signal("INT"), signal -> interrupt());
	}

	private void interrupt() {
		if (busy) {
			interrupted = true;
			shell.stop();
		}
	}

	// ---- events

	private static String quoted(String text) {
		StringBuilder out = new StringBuilder("\"");
		for (char c : String.valueOf(text).toCharArray()) {
			if (c == '"' || c == '\\')
				out.append('\\').append(c);
			else if (c < 0x20 || c == 0x7f)
				out.append(String.format("\\u%04x", (int) c));
			else
				out.append(c);
		}
		return out.append('"').toString();
	}

	private void emit(String... pairs) {
		StringJoiner fields = new StringJoiner(",", "{", "}\n");
		for (int i = 0; i < pairs.length; i += 2)
			fields.add(quoted(pairs[i]) + ":" + pairs[i + 1]);
		System.out.flush();
		System.err.flush();
		events.print(fields);
		events.flush();
	}

	private void error(String name, String value, String traceback) {
		emit("type", quoted("error"), "name", quoted(name), "value", quoted(value), "traceback", quoted(traceback));
	}

	// ---- one request

	private void compileError(Snippet snippet) {
		List<Diag> problems = shell.diagnostics(snippet).filter(Diag::isError).toList();
		String text = problems.isEmpty() ? "the code was rejected" : problems.get(0).getMessage(Locale.ENGLISH).lines().findFirst().orElse("");
		StringBuilder trace = new StringBuilder();
		problems.forEach(each -> trace.append("error: ").append(each.getMessage(Locale.ENGLISH)).append('\n'));
		error("CompileError", text, trace + snippet.source() + "\n");
	}

	private void exception(JShellException problem) {
		if (!(problem instanceof EvalException thrown)) {
			error("UnresolvedReferenceException", String.valueOf(problem.getMessage()), problem + "\n");
			return;
		}
		StringBuilder trace = new StringBuilder(thrown.getExceptionClassName() + ": " + thrown.getMessage() + "\n");
		for (StackTraceElement frame : thrown.getStackTrace())
			if (!frame.getClassName().startsWith("REPL.") || !frame.getMethodName().equals("do_it$"))
				trace.append("\tat ").append(frame).append('\n');
		String name = thrown.getExceptionClassName();
		error(name.substring(name.lastIndexOf('.') + 1), String.valueOf(thrown.getMessage()), trace.toString());
	}

	/** Whether to go on with what comes after it. */
	private boolean evaluate(String source, boolean last) {
		for (SnippetEvent event : shell.eval(source)) {
			if (event.causeSnippet() != null)
				continue;
			if (interrupted) {
				error("KeyboardInterrupt", "", "interrupted\n");
				return false;
			}
			if (event.status() == Snippet.Status.REJECTED) {
				compileError(event.snippet());
				return false;
			}
			if (event.exception() != null) {
				exception(event.exception());
				return false;
			}
			String value = event.value();
			if (last && value != null && VALUES.contains(event.snippet().subKind()))
				emit("type", quoted("result"), "main", "true", "text", quoted(value), "bundle",
					"{\"text/plain\":" + quoted(value) + "}");
		}
		return true;
	}

	private void run(String code) {
		SourceCodeAnalysis analysis = shell.sourceCodeAnalysis();
		busy = true;
		interrupted = false;
		for (String rest = code; !rest.isBlank();) {
			SourceCodeAnalysis.CompletionInfo next = analysis.analyzeCompletion(rest);
			String source = next.source() != null && !next.source().isBlank() ? next.source() : rest;
			rest = source == rest ? "" : next.remaining();
			if (next.completeness() != SourceCodeAnalysis.Completeness.EMPTY && !evaluate(source, rest.isBlank()))
				break;
		}
		busy = false;
	}

	private static String unhex(String text) {
		return new String(HexFormat.of().parseHex(text), StandardCharsets.UTF_8);
	}

	private static void change(String name, String value) {
		if (value == null)
			System.clearProperty(name);
		else
			System.setProperty(name, value);
	}

	private void answer(String line) throws IOException {
		String[] words = line.split(" ");
		Map<String, String> before = new HashMap<>();
		for (int i = 1; i < words.length; i++) {
			String kind = words[i].substring(0, words[i].indexOf(':'));
			String[] pair = words[i].substring(kind.length() + 1).split("=", 2);
			String name = unhex(pair[0]);
			if (name.isEmpty())
				continue;
			if (kind.equals("env"))
				before.put(name, System.getProperty(name));
			change(name, kind.equals("unset") ? null : unhex(pair[1]));
		}
		run(Files.readString(Path.of(words[0])));
		before.forEach(Kernel::change);
		emit("type", quoted("end"));
	}

	public static void main(String[] arguments) throws IOException {
		Kernel kernel = new Kernel();
		BufferedReader requests = new BufferedReader(new InputStreamReader(new FileInputStream("/dev/fd/3"), StandardCharsets.UTF_8));
		kernel.emit("type", quoted("ready"));
		for (String line; (line = requests.readLine()) != null;)
			kernel.answer(line);
		System.exit(0);
	}
}
