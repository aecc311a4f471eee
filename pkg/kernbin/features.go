package kernbin

// MinMajor and MinMinor are the oldest kern accepted. 0.33 is the first whose
// alive and teardown descriptors are known, byte for byte, from trying; what an
// older one leaves unsaid would have to be guessed from its text.
const (
	MinMajor = 0
	MinMinor = 33
)

// Feature is one thing that kern can do and this project relies on.
type Feature string

// The features, with how kern is asked for each.
const (
	// FeatureTeardown: KERN_STARTED_FD receives four bytes when a box ends.
	FeatureTeardown Feature = "teardown-fd"
	// FeatureAlive: KERN_ALIVE_FD tells "accepted", "running" and "setup failed" apart.
	FeatureAlive Feature = "alive-fd"
	// FeatureGate: KERN_GATE_FD holds a built box before its command is executed.
	FeatureGate Feature = "pre-exec-gate"
	// FeatureExecTeardown: `kern exec` writes the teardown bytes too.
	FeatureExecTeardown Feature = "exec-teardown-fd"
	// FeatureEgress: --egress-allow.
	FeatureEgress Feature = "egress-allow"
	// FeatureRequireLimits: --require-limits.
	FeatureRequireLimits Feature = "require-limits"
	// FeatureSecurityProfile: --security-profile.
	FeatureSecurityProfile Feature = "security-profile"
)

// features gives each feature's first version. A row names the oldest version
// it was seen working in, not the one its changelog claims.
var features = [...]struct {
	name         Feature
	major, minor int
}{
	{FeatureTeardown, 0, 33},
	{FeatureAlive, 0, 33},
	{FeatureGate, 0, 33},
	{FeatureExecTeardown, 0, 33},
	{FeatureEgress, 0, 33},
	{FeatureRequireLimits, 0, 33},
	{FeatureSecurityProfile, 0, 33},
}

// AtLeast reports whether k's version is major.minor or newer.
func (k *Kern) AtLeast(major, minor int) bool {
	return k.Major > major || k.Major == major && k.Minor >= minor
}

// Has reports whether k's version has the feature.
func (k *Kern) Has(f Feature) bool {
	for _, row := range features {
		if row.name == f {
			return k.AtLeast(row.major, row.minor)
		}
	}
	return false
}

// Features lists what k's version can do, in a fixed order.
func (k *Kern) Features() []Feature {
	var fs []Feature
	for _, row := range features {
		if k.AtLeast(row.major, row.minor) {
			fs = append(fs, row.name)
		}
	}
	return fs
}
