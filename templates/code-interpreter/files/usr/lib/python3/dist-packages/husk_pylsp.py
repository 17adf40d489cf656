"""workspace/symbol for pylsp, which knows the symbols of single documents only. jedi, which pylsp stands on, finds those of
a project. pylsp finds this module by its entry point (husk_pylsp-1.dist-info)."""

import itertools

import jedi
from pylsp import hookimpl

KINDS = {"module": 2, "class": 5, "property": 7, "function": 12}
VARIABLE = 13
SYMBOLS_MAX = 500


def place(position):
    return {"line": position[0] - 1, "character": position[1]}


def symbol(name):
    found = {"start": place(name.get_definition_start_position()), "end": place(name.get_definition_end_position())}
    return {
        "name": name.name,
        "kind": KINDS.get(name.type, VARIABLE),
        "location": {"uri": name.module_path.as_uri(), "range": found},
    }


@hookimpl
def pylsp_dispatchers(workspace):
    def symbols(params):
        root = workspace.root_path
        names = jedi.Project(root, sys_path=[root]).complete_search((params or {}).get("query", ""), all_scopes=True)
        own = (name for name in names if name.module_path and name.get_definition_start_position())
        return [symbol(name) for name in itertools.islice(own, SYMBOLS_MAX)]

    return {"workspace/symbol": symbols}
