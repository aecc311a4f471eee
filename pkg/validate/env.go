package validate

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// KV is one environment variable of a box.
type KV struct {
	Key, Value string
}

// HasKey says whether a variable is among those.
func HasKey(env []KV, key string) bool {
	return slices.ContainsFunc(env, func(kv KV) bool { return kv.Key == key })
}

const (
	// maxEnvString is the kernel's MAX_ARG_STRLEN: KEY=VALUE with the final NUL
	// must fit into it, or exec fails and the command looks like the culprit.
	maxEnvString = 128 << 10
	// MaxEnv bounds the environment of a box, and an env-file: the kernel allows
	// arguments and environment together a quarter of the stack limit (2 MiB on
	// a common host), past which exec fails in the same way.
	MaxEnv = 1 << 20
)

// EnvKey checks the name of a variable: [A-Za-z_][A-Za-z0-9_]*. kern drops
// other names without a word.
func EnvKey(s string) error {
	if !envKey(s) {
		return refuse(s, "not the name of a variable", "use letters, digits and _, and begin with no digit")
	}
	return nil
}

func envKey(s string) bool {
	return word(s, "_", "", maxEnvString) && !isDigit(s[0])
}

// EnvValue checks the value of a variable: UTF-8 without NUL. Newlines are
// fine. The refusal never shows the value, which may be a secret. The limit on
// the length counts the name too: see KV.Check.
func EnvValue(s string) error { return envValue("value", s) }

func envValue(name, s string) error {
	switch {
	case strings.IndexByte(s, 0) >= 0:
		return refuse(name, "the value holds a NUL byte, which no environment can carry", "encode it, with base64 say")
	case !utf8.ValidString(s):
		return refuse(name, "the value is not UTF-8, and kern refuses an env-file that is not", "encode it, with base64 say")
	case len(s) >= maxEnvString:
		return refuse(name, tooLong, "put it into a file and mount that")
	}
	return nil
}

const tooLong = "longer than the 128 KiB that the kernel allows one variable"

// Check refuses a variable that would not reach the box as it is. The refusal
// shows its name alone.
func (kv KV) Check() error {
	if err := EnvKey(kv.Key); err != nil {
		return err
	}
	if err := envValue(kv.Key, kv.Value); err != nil {
		return err
	}
	if len(kv.Key)+len("=")+len(kv.Value)+1 > maxEnvString {
		return refuse(kv.Key, tooLong, "put it into a file and mount that")
	}
	return nil
}

// CheckEnv checks every variable, and that all of them together are at most
// MaxEnv bytes.
func CheckEnv(list []KV) error {
	total := 0
	for _, kv := range list {
		if err := kv.Check(); err != nil {
			return err
		}
		if total += len(kv.Key) + len(kv.Value) + 2; total > MaxEnv {
			return refuse(kv.Key, "with it the environment is larger than "+Size(MaxEnv).Human(), "put large values into a file and mount that")
		}
	}
	return nil
}

// ParseEnv reads the argument of -e: "K=V", or "K" for the caller's own value,
// which is the safe way to hand over a secret, as argv is readable by others.
// hasValue tells the two apart.
func ParseEnv(s string) (key, value string, hasValue bool, err error) {
	key, value, hasValue = strings.Cut(s, "=")
	if key == "" {
		// Not s: what stands behind the sign may be a secret.
		return "", "", false, refuse("", "no variable is named", "write NAME=VALUE, or NAME for your own value")
	}
	if err = EnvKey(key); err == nil && hasValue {
		err = KV{key, value}.Check()
	}
	if err != nil {
		return "", "", false, err
	}
	return key, value, hasValue, nil
}

func line(n int) string { return "line " + strconv.Itoa(n) }
