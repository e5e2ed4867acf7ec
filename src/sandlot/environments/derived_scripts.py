"""What is asked of a sandbox that has a shell and little else. Every name is an argument and never a part of a script;
where names are told, each ends with a mark that nobody can guess. Programs that may be missing are not needed."""

NO_FILE, DIRECTORY, OTHER_KIND, REFUSED, OF_THE_KERNEL = 41, 42, 43, 44, 45

# Mode, size, owner, group and time of what "$1" is, without following it.
_TELL = r"""
tell() {
  said=$(stat -c '%f %s %u %g %Y' "$1" 2>/dev/null) && return
  if [ -L "$1" ]; then said='a1ff 0 0 0 0'
  elif [ -d "$1" ]; then said='41ed 0 0 0 0'
  elif [ -f "$1" ]; then said="81a4 $(wc -c <"$1") 0 0 0"
  else said='11a4 0 0 0 0'
  fi
}
"""
# The path of what "$1" leads to, links followed; its last name need not be there. `ls` tells where there is no
# `readlink`.
_REAL = r"""
real() {
  real=$(readlink -f "$1" 2>/dev/null; printf x)
  real=${real%?x}
  if [ "${real#/}" = "$real" ]; then
    real=$1 links=0
    while :; do
      dir=${real%/*}
      dir=$(cd "${dir:-/}" 2>/dev/null && pwd -P; printf x)
      dir=${dir%?x}
      [ -n "$dir" ] || exit 41
      real=${dir%/}/${real##*/}
      [ -L "$real" ] || break
      links=$((links + 1))
      [ $links -le 40 ] || exit 41
      to=$(ls -ld "$real" 2>/dev/null; printf x)
      to=${to%?x}
      to=${to#*"$real -> "}
      case $to in /*) real=$to ;; *) real=${real%/*}/$to ;; esac
    done
  fi
  case $real in /proc|/proc/*|/sys|/sys/*|/dev|/dev/*) exit 45 ;; esac
}
"""

# PATH FOLLOW MARK
STAT = rf"""
{_TELL}{_REAL}
export LC_ALL=C
[ -e "$1" ] || [ -L "$1" ] || exit 41
real=$1
if [ "$2" = 1 ]; then real "$1"; [ -e "$real" ] || exit 41; fi
tell "$real"
printf '%s\n%s%s\n' "$said" "$real" "$3"
"""
# DIRECTORY DEPTH HIDDEN MARK
LIST = rf"""
export LC_ALL=C
[ -d "$1" ] || {{ [ -e "$1" ] && exit 43; exit 41; }}
cd "$1" || exit 44
depth=$2 mark=$4
if [ "$3" = 1 ]; then set -- -name ''; else set -- -name '.*' ! -name . -prune; fi
if stat -c %f . >/dev/null 2>&1; then
  find . -xdev -maxdepth "$depth" \( "$@" \) -o -exec stat -c "%f %s %u %g %Y %n$mark" {{}} +
else
  find . -xdev -maxdepth "$depth" \( "$@" \) -o -exec sh -c '{_TELL.replace("'", chr(39) + chr(92) + chr(39) + chr(39))}
    mark=$1; shift
    for one; do tell "$one"; printf "%s %s%s\n" "$said" "$one" "$mark"; done' sh "$mark" {{}} +
fi
"""
# DIRECTORY MARK LINK...
TARGETS = r"""
cd "$1" || exit 44
mark=$2; shift 2
for one; do readlink "$one" 2>/dev/null; printf '%s\n' "$mark"; done
"""
# PATH PARENTS MARK
PREPARE = rf"""
{_TELL}{_REAL}
export LC_ALL=C
case $1 in */) exit 42 ;; esac
dir=${{1%/*}}
[ "$2" = 1 ] && {{ mkdir -p "${{dir:-/}}" || exit 1; }}
[ -d "${{dir:-/}}" ] || {{ [ -e "${{dir:-/}}" ] && exit 43; exit 41; }}
[ -d "$1" ] && exit 42
[ -e "$1" ] && [ ! -f "$1" ] && exit 43
real "$1"
dir=${{real%/*}}
[ -d "${{dir:-/}}" ] || exit 41
[ -w "${{dir:-/}}" ] || exit 44
said='- -'
[ -e "$real" ] && {{ said=$(stat -c '%a %u:%g' "$real" 2>/dev/null) || said='- -'; }}
printf '%s\n%s%s\n' "$said" "$real" "$3"
"""
# NEW REAL MODE OWNER
FINISH = r"""
export LC_ALL=C
[ -d "$2" ] && exit 42
chmod "$3" "$1" || exit 1
[ "$4" = - ] || chown "$4" "$1" 2>/dev/null
mv -f "$1" "$2"
"""
REMOVE = 'rm -f "$1"'
# DIRECTORY NEEDLE NAME...
WITH_TEXT = r"""
cd "$1" || exit 44
needle=$2; shift 2
exec grep -lF -e "$needle" "$@"
"""
# DIRECTORY ARCHIVE NAME...
PACK = r"""
cd "$1" || exit 44
archive=$2; shift 2
exec tar cf "$archive" "$@"
"""
WORKSPACE = 'mkdir -p "$1" && cd "$1"'
