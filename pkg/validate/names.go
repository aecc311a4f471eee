package validate

import (
	"slices"
	"strings"
)

// profileKinds are the kinds of resource profile that kern knows.
var profileKinds = []string{"vcpu", "vgpio", "vdisk"}

// Profile checks a resource profile of kern.toml: KIND:NAME, where KIND is vcpu,
// vgpio or vdisk and NAME [A-Za-z0-9][A-Za-z0-9._-]* of at most 64 bytes.
// Whether kern.toml has it is kern's to say.
func Profile(s string) error {
	const fix = "write vcpu:NAME, vgpio:NAME or vdisk:NAME"
	kind, name, ok := strings.Cut(s, ":")
	if !slices.Contains(profileKinds, kind) {
		if near := Nearest(kind, profileKinds); near != "" && ok {
			return refuse(s, "unknown kind of profile "+quote(kind), "did you mean "+near+"?")
		}
		return refuse(s, "not a resource profile", fix)
	}
	if !word(name, "", "._-", 64) {
		return refuse(s, "not the name of a profile", "use at most 64 letters, digits, dots, _ and -, and begin with a letter or digit")
	}
	return nil
}

// Capability checks the name of a capability and gives it in the spelling of
// kern: upper case, without CAP_, or ALL. Case does not count and CAP_ may be
// there, as in docker. Whether the kernel has it is kern's to say, save for a
// slip of the pen.
func Capability(s string) (string, error) {
	name := strings.TrimPrefix(upper(s), "CAP_")
	ok := len(name) <= 32 && name != ""
	for part := range strings.SplitSeq(name, "_") {
		ok = ok && word(part, "", "", 32)
	}
	if !ok || isDigit(name[0]) {
		return "", refuse(s, "not the name of a capability", "write a name like NET_RAW, or ALL")
	}
	if slices.Contains(capabilities, name) {
		return name, nil
	}
	if near := Nearest(name, capabilities); near != "" {
		return "", refuse(s, "unknown capability", "did you mean "+near+"?")
	}
	return name, nil
}

// capabilities are those of Linux 5.9 and later, and ALL.
var capabilities = []string{
	"ALL", "AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "BPF",
	"CHECKPOINT_RESTORE", "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID",
	"IPC_LOCK", "IPC_OWNER", "KILL", "LEASE", "LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE",
	"MKNOD", "NET_ADMIN", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_RAW", "PERFMON",
	"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYSLOG", "SYS_ADMIN", "SYS_BOOT", "SYS_CHROOT",
	"SYS_MODULE", "SYS_NICE", "SYS_PACCT", "SYS_PTRACE", "SYS_RAWIO", "SYS_RESOURCE",
	"SYS_TIME", "SYS_TTY_CONFIG", "WAKE_ALARM",
}

// AppArmor checks the name of a loaded profile: [A-Za-z0-9_.][A-Za-z0-9_.-]* of
// at most 128 bytes.
func AppArmor(s string) error {
	if !word(s, "_.", "-", 128) {
		return refuse(s, "not the name of an AppArmor profile", "use at most 128 letters, digits, dots, _ and -, and begin with no dash")
	}
	return nil
}

// User checks who a command runs as: USER or USER:GROUP, each a number or a name
// of the image, [A-Za-z0-9_][A-Za-z0-9_.-]* of at most 32 bytes.
func User(s string) error {
	user, group, two := strings.Cut(s, ":")
	if !word(user, "_", ".-", 32) || (two && !word(group, "_", ".-", 32)) {
		return refuse(s, "not a user", "write USER or USER:GROUP, as names or numbers, like 1000:1000")
	}
	for _, x := range []string{user, group} {
		if strings.Trim(x, "0123456789") != "" {
			continue
		}
		// 4294967295 is -1, by which the kernel means "leave it as it is".
		if t := strings.TrimLeft(x, "0"); len(t) > 10 || (len(t) == 10 && t > "4294967294") {
			return refuse(s, "a number larger than any user's", "write one up to 4294967294")
		}
	}
	return nil
}

// Hostname checks the name of a box's host: at most 64 letters, digits, dots and
// dashes, neither of the last two at an end.
func Hostname(s string) error {
	if !word(s, "", ".-", 64) || !isAlnum(s[len(s)-1]) {
		return refuse(s, "not a host name", "use at most 64 letters, digits, dots and dashes, with a letter or digit at both ends")
	}
	return nil
}

// BoxName checks the name of a box as kern 0.33 does: letters, digits, _ . and -,
// of at most 200 bytes, beginning with none of the last two.
func BoxName(s string) error {
	if !word(s, "_", ".-", 200) {
		return refuse(s, "not the name of a box", "use at most 200 letters, digits, _, dots and dashes, and begin with a letter, a digit or _")
	}
	return nil
}

// Name checks the name of something kept (a kernel, a pool, a workspace):
// [a-z0-9-], 1 to 32 bytes, so that it fits into a socket's path, and no dash at
// the start, so that it is never an option.
func Name(s string) error {
	if s == "" || len(s) > 32 || s[0] == '-' || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return refuse(s, "not a name", "use at most 32 lower-case letters, digits and dashes, and begin with no dash")
	}
	return nil
}
