"""Completion of a shell: `completion SHELL` prints its script, which asks the hidden command for proposals.

The script is printed and nothing is installed: no file of a user is changed. What the hidden command prints is
read by the script as data, a proposal a line: the word, a tab, what is said beside it. Each shell quotes the word
by its own means, so that no name is ever run. Exit code 1 says that the argument is a file.
"""

import os
import sys
from typing import Annotated, Literal

import typer

from nightshift.producer.cli import proposals

ASK = "__complete"
"""Name of the hidden command."""

BASH = r"""# Completion of nightshift for bash. In ~/.bashrc:  eval "$(nightshift completion bash)"
_nightshift() {
    local lines line
    COMPREPLY=()
    if ! lines=$("$1" __complete --seconds 1 -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null); then
        compopt -o default 2>/dev/null
        return
    fi
    while IFS= read -r line; do
        [ -n "$line" ] || continue
        printf -v line %q "${line%%$'\t'*}"
        COMPREPLY+=("$line")
    done <<< "$lines"
}
complete -F _nightshift nightshift
"""

ZSH = r"""#compdef nightshift
# Completion of nightshift for zsh. In ~/.zshrc, after compinit:  eval "$(nightshift completion zsh)"
_nightshift() {
    local lines line word
    local -a shown
    if ! lines=$("${(Q)words[1]}" __complete --seconds 1 -- "${(@)words[2,CURRENT]}" 2>/dev/null); then
        _files
        return
    fi
    for line in "${(@f)lines}"; do
        [[ -n $line ]] || continue
        word=${line%%$'\t'*}
        word=${word//\\/\\\\}
        shown+=("${word//:/\\:}:${line#*$'\t'}")
    done
    _describe -V nightshift shown
}
if [ "$funcstack[1]" = "_nightshift" ]; then
    _nightshift "$@"
else
    compdef _nightshift nightshift
fi
"""

FISH = r"""# Completion of nightshift for fish:  nightshift completion fish > ~/.config/fish/completions/nightshift.fish
function __nightshift_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found (command $words[1] __complete --seconds 1 -- $words[2..-1] "$current" 2>/dev/null)
    or begin
        complete --do-complete "'' $current"
        return
    end
    string join \n -- $found
end
complete --command nightshift --no-files --keep-order --arguments '(__nightshift_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.", show_default=False)
    ],
) -> None:
    """Print a script that completes commands, jobs, pools and hosts in your shell.

    Nothing is installed. In bash: eval "$(nightshift completion bash)", also in ~/.bashrc. In zsh the same with
    zsh, after compinit. In fish: nightshift completion fish > ~/.config/fish/completions/nightshift.fish
    """
    typer.echo(SCRIPTS[shell], nl=False)


def ask(
    context: typer.Context,
    words: Annotated[list[str] | None, typer.Argument()] = None,
    seconds: Annotated[float, typer.Option(min=0)] = proposals.SECONDS,
) -> None:
    """Print what the last of these words may become, a proposal a line."""
    proposals.Asked.seconds = seconds
    code = 1
    try:
        *before, incomplete = words or [""]
        found = _completions(context, before, incomplete)
        lines = [line for value, said in found if (line := _line(value, said)) is not None]
        code = 0 if lines or proposals.Asked.has_own else 1
        sys.stdout.write("".join(lines[: 2 * proposals.MOST]))
        sys.stdout.flush()
    except Exception:
        code = 1
    # Not by `sys.exit`: a thread may still wait for a ledger, and its driver must not keep the process.
    os._exit(code)


def _completions(
    context: typer.Context, before: list[str], incomplete: str
) -> list[tuple[str, str]]:
    """The proposals of the command line's own parser; files are left to the shell."""
    # Typer has its parser inside, and this class is the one way to the proposals that it had in all releases.
    from typer._completion_classes import BashComplete

    root = context.find_root().command
    asked = BashComplete(root, {}, "nightshift", "")
    # bash makes a word of the sign between an option and its value.
    before = [word for word in before if word != "="]
    items = asked.get_completions(before, "" if incomplete == "=" else incomplete)
    return [(item.value, item.help or "") for item in items if item.type == "plain"]


def _line(value: str, said: str) -> str | None:
    """A proposal for the scripts; None for a word that no shell could show as it is."""
    if not value or not value.isprintable():
        return None
    said = "".join(letter if letter.isprintable() else " " for letter in said)
    return f"{value}\t{said}\n"
