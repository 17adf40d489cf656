# Runs the user's R for kernel_relay.py, which describes the protocol: requests on descriptor 3, events as JSON lines on
# descriptor 4. As in Jupyter, every visible value is shown, the last one as the main result, and plots are pictures.
# Descriptors 1 and 2 belong to the user's code. An error in it is an event; only quit() ends this process.

local({
	requests <- fifo("/dev/fd/3", "r", blocking = TRUE)
	events <- file("/dev/fd/4", "w", raw = TRUE)
	plots <- tempfile("plots")
	dir.create(plots)

	quoted <- function(text) {
		text <- iconv(paste(text, collapse = "\n"), "UTF-8", "UTF-8", sub = "?")
		for (pair in list(c("\\", "\\\\"), c("\"", "\\\""), c("\n", "\\n"), c("\r", "\\r"), c("\t", "\\t")))
			text <- gsub(pair[1], pair[2], text, fixed = TRUE)
		paste0("\"", gsub("[\001-\037\177]", " ", text), "\"")
	}
	object <- function(...) {
		fields <- list(...)
		paste0("{", paste0("\"", names(fields), "\":", unlist(fields), collapse = ","), "}")
	}
	emit <- function(...) {
		flush(stdout())
		flush(stderr())
		writeLines(object(...), events, useBytes = TRUE)
		flush(events)
	}

	# ---- results

	send_plots <- function() {
		graphics.off()
		for (path in list.files(plots, full.names = TRUE))
			emit(type = "\"result\"", main = "false", text = "\"\"", bundle = "{}", files = object("image/png" = quoted(path)))
	}
	show_value <- function(value, main) {
		text <- utils::capture.output(if (isS4(value)) methods::show(value) else print(value))
		if (length(text) && dev_is_closed())
			emit(type = "\"result\"", main = main, text = quoted(text), bundle = object("text/plain" = quoted(text)))
		else if (length(text))
			cat(text, sep = "\n")
	}
	dev_is_closed <- function() is.null(grDevices::dev.list())

	# ---- one request

	evaluate <- function(path) {
		expressions <- parse(path, keep.source = TRUE, encoding = "UTF-8")
		for (i in seq_along(expressions)) {
			outcome <- withVisible(eval(expressions[[i]], globalenv()))
			if (outcome$visible)
				show_value(outcome$value, if (i == length(expressions)) "true" else "false")
			assign(".Last.value", outcome$value, envir = globalenv())
		}
	}
	fail <- function(problem) {
		call <- conditionCall(problem)
		ours <- is.null(call) || identical(call[[1]], quote(parse)) || identical(call[[1]], quote(eval))
		where <- if (ours) "" else paste0(" in ", deparse(call)[1])
		text <- conditionMessage(problem)
		emit(type = "\"error\"", name = quoted(class(problem)[1]), value = quoted(text),
			traceback = quoted(paste0("Error", where, ": ", text, "\n")))
	}
	run <- function(path) {
		tryCatch({
			evaluate(path)
		}, error = fail, interrupt = function(problem) {
			emit(type = "\"error\"", name = "\"KeyboardInterrupt\"", value = "\"\"", traceback = "\"interrupted\\n\"")
		})
		send_plots()
	}

	unhex <- function(text) {
		if (!nchar(text)) return("")
		at <- seq(1, nchar(text), 2)
		rawToChar(as.raw(strtoi(substring(text, at, at + 1), 16L)))
	}
	change <- function(name, value) {
		if (is.na(value)) Sys.unsetenv(name) else do.call(Sys.setenv, stats::setNames(list(value), name))
	}
	answer <- function(line) {
		words <- strsplit(line, " ", fixed = TRUE)[[1]]
		before <- list()
		for (word in words[-1]) {
			kind <- sub(":.*", "", word)
			pair <- strsplit(paste0(sub("^[a-z]*:", "", word), "=="), "=", fixed = TRUE)[[1]]
			name <- unhex(pair[1])
			if (kind == "env")
				before[[name]] <- Sys.getenv(name, NA)
			change(name, if (kind == "unset") NA else unhex(pair[2]))
		}
		run(words[1])
		for (name in names(before)) change(name, before[[name]])
		emit(type = "\"end\"")
	}

	options(warn = 1, browser = "false", menu.graphics = FALSE, device = function(...)
		grDevices::png(file.path(plots, "plot%03d.png"), width = 960, height = 640, res = 120, type = "cairo"))
	emit(type = "\"ready\"")
	repeat {
		line <- tryCatch(readLines(requests, n = 1), interrupt = function(problem) NULL)
		if (!is.null(line) && !length(line)) break
		if (!is.null(line)) answer(line)
	}
})
