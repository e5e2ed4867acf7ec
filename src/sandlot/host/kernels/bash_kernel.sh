# What a bash context hears first. It is interactive, without a terminal: so an interrupt ends the line that runs, and
# the shell goes on with the next one. The mark stands in two halves, so that a listing of variables does not hold it.
PS1= PS2= PS4='+ '
export -n PS1 PS2
set +H +o history
unset HISTFILE PROMPT_COMMAND
exec {__sandlot_o}>&1 {__sandlot_e}>&2
__sandlot_say() {
    printf '\036%s%s%s.%04d%s' "$__sandlot_a" "$__sandlot_b" "$1" "${#2}" "$2" >&"$__sandlot_o"
}
__sandlot_told() { # how it ended
    if (($1)); then
        __sandlot_say E "{\"n\":$__sandlot_n,\"name\":\"ExitStatus\",\"value\":\"$1\",\"traceback\":\"\"}"
        __sandlot_say X "{\"n\":$__sandlot_n,\"status\":\"error\"}"
    else
        __sandlot_say X "{\"n\":$__sandlot_n,\"status\":\"ok\"}"
    fi
    printf '\036%s%sZ.%04d%s' "$__sandlot_a" "$__sandlot_b" "${#__sandlot_n}" "$__sandlot_n" >&"$__sandlot_e"
    __sandlot_n=0
}
__sandlot_begin() { # the run, then names and values
    __sandlot_n=$1
    __sandlot_kept=()
    shift
    while (($#)); do
        if [[ -v $1 ]]; then
            local flags=${!1@a}
            __sandlot_kept+=("$1" "1${!1}" "$flags")
        else
            __sandlot_kept+=("$1" 0 '')
        fi
        export "$1=$2"
        shift 2
    done
    __sandlot_say B "{\"n\":$__sandlot_n}"
}
__sandlot_end() {
    local status=$? name flags=$-
    set +xeu
    set -- ${__sandlot_kept[@]+"${__sandlot_kept[@]}"}
    while (($#)); do
        if [[ $2 == 0 ]]; then
            unset -v "$1"
        else
            printf -v "$1" %s "${2:1}"
            [[ $3 == *x* ]] || export -n "$1"
        fi
        shift 3
    done
    ((__sandlot_n)) && __sandlot_told "$status"
    [[ $flags == *u* ]] && set -u
    [[ $flags == *e* ]] && set -e
    [[ $flags == *x* ]] && set -x
    return 0
} 2>/dev/null
__sandlot_exit() {
    local status=$1
    { set +xeu; } 2>/dev/null
    ((__sandlot_n)) && __sandlot_told "$status"
}
trap '__sandlot_exit $?' EXIT
__sandlot_n=0
__sandlot_say R "{\"n\":0,\"version\":\"${BASH_VERSION%%[!0-9.]*}\"}"
