// Package hostroot builds the root of `--image host`: a small directory that
// holds copies of what toolchains read in /etc, never a secret, with the
// host's own /usr (and /opt) to be mounted read-only over it.
//
// Prepare builds that directory once per state of the host and afterwards only
// looks at a few file times. Nothing of /home, /root, /var and /run is ever in
// the root, except the prefix of a tool that the caller asked for by name.
package hostroot
