"""Inductor's Triton kernels as one file that needs no GPU to compile."""

import ast
from collections.abc import Mapping


# --8<-- [start:standalone]
def standalone(sources: Mapping[str, str]) -> str:
    """Inductor's Triton kernels as one file: the functions, and the imports that they use.

    Left out are the decorator that chooses a configuration, and a call that asks for a GPU.
    """
    imports: dict[str, None] = {}  # an ordered set
    functions: dict[str, None] = {}
    for source in sources.values():
        lines, module = source.splitlines(), ast.parse(source)
        used: set[str] = set()
        for function in module.body:
            if isinstance(function, ast.FunctionDef):
                function.decorator_list = [
                    node for node in function.decorator_list if "triton.jit" in ast.unparse(node)
                ]
                first = min(node.lineno for node in (function, *function.decorator_list))
                functions["\n".join(lines[first - 1 : function.end_lineno])] = None
                used |= {name.id for name in ast.walk(function) if isinstance(name, ast.Name)}
        for node in module.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                node.names = [name for name in node.names if (name.asname or name.name).partition(".")[0] in used]
                if node.names:
                    imports[ast.unparse(node)] = None
    return "\n".join(imports) + "\n\n\n" + "\n\n\n".join(functions) + "\n"


# --8<-- [end:standalone]
