"""The end of all that was begun for one call, wherever it went: in a sandbox that has a shell and little else."""

# MARK: all that has it among its variables is ended, asked first and then not asked.
END = r"""
for step in 'TERM 0' '0 0.1' '0 0.3' '0 0.6' '0 1' 'KILL 0.1' 'KILL 0.2' 'KILL 1'; do
  sleep "${step#* }" 2>/dev/null || sleep 1
  found=
  for one in /proc/[0-9]*; do
    [ -r "$one/environ" ] || continue
    case $(cat "$one/environ" 2>/dev/null) in *SANDLOT_CALL=$1*) ;; *) continue ;; esac
    kill "-${step% *}" "${one#/proc/}" 2>/dev/null && found=1
  done
  [ -n "$found" ] || exit 0
done
exit 1
"""
