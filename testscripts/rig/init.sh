#!/bin/sh
# Pid 1 of the guest, and with `case N` the setting up of case N in a mount namespace
# of its own. It meets its runner on ttyS0: "ready" when up, then a number in for each
# case and "number status" back. Everything else goes through $R, the runner's run
# directory. When the runner goes away, ttyS0 ends and so does the guest.
set -eu
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
R=/mnt/rig
C=/sys/fs/cgroup

# enable DIR...: hand the controllers on to the children of each
enable() {
	for d; do
		mkdir -p "$d"
		echo '+cpu +io +memory +pids' >"$d/cgroup.subtree_control"
	done
}

# own DIR...: what systemd gives away with Delegate=yes
own() {
	for d; do
		mkdir -p "$d"
		chown 1000:1000 "$d" "$d/cgroup.procs" "$d/cgroup.threads" "$d/cgroup.subtree_control"
	done
}

# enter: this shell into the cgroup its user would find itself in. The names are
# systemd's because kern reads them.
enter() {
	slice=$C/user.slice/user-$uid.slice
	enable "$C/user.slice" "$slice"
	leaf=$slice/session-1.scope
	service=$slice/user@1000.service
	if [ "$manager" = 1 ]; then
		own "$slice" "$service" "$leaf"
		start_manager
	elif [ "$user$delegate" = tester1 ]; then
		leaf=$service/run.scope
		enable "$service"
		own "$service" "$leaf"
	fi
	mkdir -p "$leaf"
	echo 0 >"$leaf/cgroup.procs"
	[ "$user$delegate" != root0 ] || mount -o remount,bind,ro "$C"
}

# start_manager: tester's own `systemd --user`, with no units of the host's in it.
# It wants a machine that systemd booted, as kern does. The slice is tester's because
# there is no system manager to move processes across it.
start_manager() {
	mkdir -p /run/systemd/system /run/units
	for t in basic default exit shutdown; do
		printf '[Unit]\nDefaultDependencies=no\n' >/run/units/$t.target
	done
	# In a login this one's weight is why the manager hands cpu down as well.
	printf '[Slice]\nCPUWeight=100\nMemoryAccounting=yes\nTasksAccounting=yes\n' >/run/units/session.slice
	echo 'Wants=session.slice' >>/run/units/default.target
	(
		echo 0 >"$service/cgroup.procs"
		# shellcheck disable=SC2086 # become is several words
		exec $become env -i PATH="$PATH" HOME="$home" USER="$user" XDG_RUNTIME_DIR="$run" \
			SYSTEMD_UNIT_PATH=/run/units /usr/lib/systemd/systemd --user --log-target=console
	) >/run/units/log 2>&1 &
	n=0
	# shellcheck disable=SC2086
	until [ -S "$run/systemd/private" ] && $become env XDG_RUNTIME_DIR="$run" \
		systemctl --user is-system-running --wait >/dev/null 2>&1; do
		n=$((n + 1))
		if [ $n -gt 200 ] || ! kill -0 $!; then
			echo 'systemd --user did not start:' >&2
			cat /run/units/log >&2
			exit 1
		fi
		sleep 0.1
	done
}

# share_ro and share_rw are called by the case's conf, with absolute host paths. What
# is writable was settled by the runner, at boot; here it is only made visible.
share_ro() {
	if [ -d "/mnt/host$1" ]; then
		mkdir -p "$1"
	else
		[ -e "$1" ] || { mkdir -p "${1%/*}" && : >"$1"; }
	fi
	mount --bind "/mnt/host$1" "$1"
}
share_rw() {
	mkdir -p "$1"
	mount -t hostfs -o "$1" none "$1"
}

if [ "${1-}" = case ]; then
	case_dir=$R/$2
	cmd=$(cat "$case_dir/cmd")
	exec >"$case_dir/out" 2>"$case_dir/err" </dev/null
	for d in home:755 root:700 run:755 tmp:1777 var/tmp:1777; do
		mount -t tmpfs -o mode=${d#*:} tmpfs /${d%:*}
	done
	. "$case_dir/conf" # user, delegate, manager, shares()
	uid=0 home=/root become=
	if [ "$user" = tester ]; then
		uid=1000 home=/home/tester become='setpriv --reuid 1000 --regid 1000 --clear-groups'
	fi
	run=/run/user/$uid
	mkdir /run/user
	install -d -m 700 -o $uid -g $uid "$home" "$run"
	shares
	enter
	: >"$case_dir/started"
	: >/mnt/start # the time runs from here
	umount -l /mnt
	cd "$home"
	# shellcheck disable=SC2086 # become is several words
	exec $become env -i PATH="$PATH" HOME="$home" USER="$user" LOGNAME="$user" SHELL=/bin/sh \
		LANG=C.UTF-8 XDG_RUNTIME_DIR="$run" /bin/sh -c "$cmd"
fi

# ---- pid 1
say() { echo "$*" >/dev/ttyS0; }
trap 'say "failed, see the console"; sleep 1' EXIT

mount -t proc proc /proc
exec 3</dev/ttyS0
stty -F /dev/ttyS0 raw -echo
mount -t sysfs sysfs /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts -o ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
ln -sfn /proc/self/fd /dev/fd
mount -t cgroup2 cgroup2 $C
insmod "/usr/lib/uml/modules/$(uname -r)/kernel/fs/overlayfs/overlay.ko"
echo rig >/proc/sys/kernel/hostname
ip link set lo up 2>/dev/null || busybox ip link set lo up 2>/dev/null || :

mkdir /mnt/host /mnt/etc
mount --bind / /mnt/host
for f in passwd group; do
	{ grep -v -e '^tester:' -e '^[^:]*:[^:]*:1000:' /etc/$f || :; } >/mnt/etc/$f
done
echo 'tester:x:1000:1000::/home/tester:/bin/sh' >>/mnt/etc/passwd
echo 'tester:x:1000:' >>/mnt/etc/group
echo 'tester:100000:65536' | tee /mnt/etc/subuid >/mnt/etc/subgid
for f in passwd group subuid subgid; do
	[ ! -e /etc/$f ] || mount --bind /mnt/etc/$f /etc/$f
done
mkfifo /mnt/start

mkdir $C/init.scope
echo 1 >$C/init.scope/cgroup.procs
enable $C

say ready
while read -r n limit <&3; do
	setsid unshare --mount --propagation private /bin/sh $R/init case "$n" 3<&- &
	pid=$!
	(
		: </mnt/start
		sleep "$limit"
		: >"$R/$n/late"
		kill -9 -1
	) 3<&- &
	rc=0
	wait $pid || rc=$?
	kill -9 -1 || : # all but this shell: the watchdog, and what the case left running
	wait || :
	sync
	find $C -mindepth 1 -depth -type d ! -path $C/init.scope -exec rmdir {} + 2>/dev/null || :
	say "$n $rc"
done
trap - EXIT
