# Bash completion for husk: commands, options, and the live names of sandboxes, snapshots and templates.
#
# Options are read from `husk COMMAND --help` and names from `husk … --json`, so that nothing here has to be kept in
# step with the program. Installed as share/bash-completion/completions/husk.

# The values of one key in a JSON list, a word each.
_husk_values()
{
	local key=$1
	shift
	"$_husk_program" "$@" --json 2>/dev/null | sed -n "s/^ *\"$key\": \"\([^\"]*\)\",\{0,1\}$/\1/p"
}

_husk_sandboxes()
{
	_husk_values id ls
	_husk_values name ls
}

_husk_snapshots()
{
	_husk_values id snapshot ls
	_husk_values name snapshot ls
}

_husk_volumes()
{
	_husk_values id volume ls
	_husk_values name volume ls
}

_husk_templates()
{
	_husk_values name template ls
}

# First words of the commands, or the second words of a family such as `snapshot`.
_husk_commands()
{
	"$_husk_program" help 2>/dev/null | sed -n 's/^  \([a-z]*\) .*/\1/p' | sort -u
}

_husk_members()
{
	"$_husk_program" help 2>/dev/null | sed -n "s/^  $1 \([a-z][a-z]*\)  .*/\1/p"
}

# The sandbox's part of SANDBOX:PATH gets its colon; bash takes ':' for a word break, so it needs no more than that.
_husk_copy()
{
	local word=$1
	compopt -o nospace -o filenames
	mapfile -t COMPREPLY < <(compgen -f -- "$word"; compgen -S : -W "$(_husk_sandboxes)" -- "$word")
}

_husk()
{
	local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} choices=
	local command=${COMP_WORDS[1]} _husk_program=${COMP_WORDS[0]/#\~/$HOME}
	COMPREPLY=()

	if ((COMP_CWORD == 1)); then
		mapfile -t COMPREPLY < <(compgen -W "$(_husk_commands)" -- "$word")
		return
	fi
	case $command in
	snapshot | template | token | volume)
		if ((COMP_CWORD == 2)); then
			mapfile -t COMPREPLY < <(compgen -W "$(_husk_members "$command")" -- "$word")
			return
		fi
		command="$command ${COMP_WORDS[2]}"
		;;
	esac

	case $previous in
	-t | --template)
		# exec's -t is a flag
		if [[ $command != exec ]]; then
			mapfile -t COMPREPLY < <(compgen -W "$(_husk_templates)" -- "$word")
			return
		fi
		;;
	--from)
		mapfile -t COMPREPLY < <(compgen -W "$(_husk_snapshots)" -- "$word")
		return
		;;
	--volume)
		compopt -o nospace
		mapfile -t COMPREPLY < <(compgen -S : -W "$(_husk_volumes)" -- "$word")
		return
		;;
	--state)
		mapfile -t COMPREPLY < <(compgen -W "creating running paused hibernated ended" -- "$word")
		return
		;;
	--isolation)
		mapfile -t COMPREPLY < <(compgen -W "auto gvisor" -- "$word")
		return
		;;
	--egress | --mode)
		mapfile -t COMPREPLY < <(compgen -W "off allow open" -- "$word")
		return
		;;
	-l | --language)
		mapfile -t COMPREPLY < <(compgen -W "python javascript bash" -- "$word")
		return
		;;
	-e | --env)
		if [[ $command != ls ]]; then
			mapfile -t COMPREPLY < <(compgen -v -- "$word")
			return
		fi
		;;
	--tar | --image | -f | --file)
		mapfile -t COMPREPLY < <(compgen -f -- "$word")
		return
		;;
	--rootfs | -o | --output-dir)
		mapfile -t COMPREPLY < <(compgen -d -- "$word")
		return
		;;
	esac

	if [[ $word == -* ]]; then
		# shellcheck disable=SC2086 # a family's command is two words
		choices=$("$_husk_program" $command --help 2>/dev/null |
			grep -oE -- '^ +(-[a-z]+, )?(--[a-z-]+|-it)' | tr -d ' ' | tr ',' '\n')
		mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
		return
	fi
	case $command in
	exec | attach | ps | inspect | rm | fork | hibernate | wake | pause | resume | extend | egress | code | logs | stats | \
		events | "snapshot create")
		choices=$(_husk_sandboxes)
		;;
	cp)
		_husk_copy "$word"
		return
		;;
	"snapshot rm")
		choices=$(_husk_snapshots)
		;;
	"volume inspect" | "volume rm" | "volume files" | "volume read" | "volume write")
		choices=$(_husk_volumes)
		;;
	"template rm" | "template build")
		choices=$(_husk_templates)
		[[ $command == "template build" ]] && compopt -o default
		;;
	help)
		choices=$(_husk_commands)
		;;
	esac
	mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
}

complete -F _husk husk
