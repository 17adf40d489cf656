#!/usr/bin/python3
"""The code-interpreter template: the data stack is there and already imported; figures, frames, the languages."""

# timeout: 2700
import base64
import struct

from lib.harness import *

TEMPLATE = "code-interpreter"


def code(box, snippet, *options, status=0):
    return husk("code", "--json", *options, box, snippet, code=status, timeout=120).json()


@test
def test_everything_imports():
    script = (
        "import numpy, pandas, matplotlib, scipy, PIL, scipy.linalg, matplotlib.pyplot\n"
        "print(int(numpy.arange(10).sum()), pandas.DataFrame({'a': [1, 2]}).a.sum(), scipy.linalg.det(numpy.eye(3)))"
    )
    assert_equal(husk("run", "-t", TEMPLATE, "--", "python3", "-c", script, timeout=120).text, "45 3 1.0\n")
    assert_equal(husk("run", "-t", TEMPLATE, "--", "node", "-e", "console.log(6*7)", timeout=60).text, "42\n")


@test
def test_imports_are_warm():
    # Not a timing: in a fresh sandbox the first call's context holds the modules before the code asks for them.
    box = create("-t", TEMPLATE)
    done = code(box, "import sys\n[name in sys.modules for name in ('numpy', 'pandas', 'matplotlib')]")
    assert_equal(done["result"], "[True, True, True]")


@test
def test_figures():
    box = create("-t", TEMPLATE)
    done = code(box, "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9]); plt.title('x')\nplt.show()")
    images = [entry["data"]["image/png"] for entry in done["results"] if "image/png" in entry["data"]]
    assert_equal(len(images), 1)
    image = base64.b64decode(images[0])
    width, height = struct.unpack(">II", image[16:24])
    assert image.startswith(b"\x89PNG\r\n\x1a\n") and width > 100 and height > 100, (width, height)
    with scratch() as place:
        husk("code", "-o", place / "out", box, "fig, ax = plt.subplots(); ax.plot([1, 2]); fig", timeout=120)
        saved = list((place / "out").iterdir())
        assert saved and saved[0].read_bytes().startswith(b"\x89PNG"), saved
    assert_equal([entry for entry in code(box, "1")["results"] if "image/png" in entry["data"]], [], "shown once")


@test
def test_frames_are_tables():
    box = create("-t", TEMPLATE)
    done = code(box, "import pandas as pd; pd.DataFrame({'city': ['Bern', 'Graz'], 'n': [1, 2]})")
    main = next(entry for entry in done["results"] if entry["main"])
    assert_in("<table", main["data"]["text/html"])
    assert_in("Bern", main["text"])


@test
def test_javascript():
    box = create("-t", TEMPLATE)
    code(box, "let x = 20; const f = n => n * 2; var y = 1", "-l", "javascript")
    done = code(box, "console.log('hi'); console.error('err'); f(x) + 2", "-l", "javascript")
    assert_equal((done["stdout"], done["stderr"], done["result"]), ("hi\n", "err\n", "42"))
    done = code(box, "throw new TypeError('bad thing')", "-l", "javascript", status=1)
    assert_equal((done["error"]["name"], done["error"]["value"]), ("TypeError", "bad thing"))
    assert_equal(code(box, "await new Promise(r => setTimeout(() => r(7), 50))", "-l", "javascript")["result"], "7")
    done = code(box, "while (true) {}", "-l", "javascript", "--timeout", "1", status=124)
    assert_equal(done["timed_out"], True)
    assert_equal(code(box, "1 + 1", "-l", "javascript")["result"], "2")


@test
def test_typescript():
    box = create("-t", TEMPLATE)
    code(box, "interface P { n: number }\nconst p: P = { n: 20 }", "-l", "typescript")
    assert_equal(code(box, "enum E { two = 2 }\n(p.n as number) * 2 + E.two", "-l", "typescript")["result"], "42")
    assert_equal(code(box, "let q: number = ", "-l", "typescript", status=1)["error"]["name"], "SyntaxError")


@test
def test_r():
    box = create("-t", TEMPLATE)
    done = code(box, "x <- c(1, 2, 3); cat('hi\\n'); message('note')\nmean(x)", "-l", "r")
    assert_equal((done["stdout"], done["stderr"], done["result"]), ("hi\n", "note\n", "[1] 2"))
    assert_in("no good", code(box, "stop('no good')", "-l", "r", status=1)["error"]["value"])
    images = [entry["data"].get("image/png") for entry in code(box, "plot(x)", "-l", "r")["results"]]
    assert base64.b64decode(images[0]).startswith(b"\x89PNG"), images
    assert_equal(code(box, "Sys.sleep(100)", "-l", "r", "--timeout", "1", status=124)["timed_out"], True)
    assert_equal(code(box, "sum(x)", "-l", "r")["result"], "[1] 6", "an interrupt keeps the context")


@test
def test_java():
    box = create("-t", TEMPLATE)
    done = code(box, 'int x = 20;\nint twice(int n) { return n * 2; }\nSystem.out.println("hi");\ntwice(x) + 2', "-l", "java")
    assert_equal((done["stdout"], done["result"]), ("hi\n", "42"))
    assert_equal(code(box, "1 / 0", "-l", "java", status=1)["error"]["name"], "ArithmeticException")
    assert_equal(code(box, 'int y = "s";', "-l", "java", status=1)["error"]["name"], "CompileError")
    assert_equal(code(box, "while (true) {}", "-l", "java", "--timeout", "1", status=124)["timed_out"], True)
    assert_equal(code(box, "x", "-l", "java")["result"], "20", "an interrupt keeps the context")


@test
def test_packages_and_rich_results():
    box = create("-t", TEMPLATE, "-e", "GIVEN=at create")
    code(box, "import sklearn, seaborn, bs4, cv2, aiohttp, requests, sympy, openpyxl, docx, nltk, networkx, skimage, statsmodels")
    done = code(box, "from PIL import Image; Image.new('RGB', (2, 2))")
    assert base64.b64decode(done["results"][0]["data"]["image/png"]).startswith(b"\x89PNG")
    done = code(box, "import plotly.graph_objects as go\ngo.Figure(go.Bar(y=[2, 3]))")
    assert any("application/vnd.plotly.v1+json" in entry["data"] for entry in done["results"]), [list(e["data"]) for e in done["results"]]
    assert_equal(code(box, "!echo $GIVEN")["stdout"], "at create\n", "the context was there before the sandbox")
    done = code(box, "import matplotlib.pyplot as plt; plt.imshow([[1, 2], [3, 4]]); plt.show()")
    assert_equal(done["results"][0]["data"]["application/vnd.husk.chart+json"], {"type": "unknown", "title": None, "elements": []})


@test
def test_forks_keep_frames_in_memory():
    box = create("-t", TEMPLATE)
    code(box, "import numpy as np; big = np.ones((1000, 1000))")
    (child,) = fork(box)
    code(child, "big *= 2")
    assert_equal(
        (code(box, "float(big.sum())")["result"], code(child, "float(big.sum())")["result"]), ("1000000.0", "2000000.0")
    )


if __name__ == "__main__":
    main(TEMPLATE)
