// Package config says what every setting is and where it came from: command
// line settings that were left out are filled from the environment, the
// project file, the user file and the system file, in that order.
//
// It guarantees that a project file nobody trusted can only tighten a run:
// keys without a rule that calls the value safe are not applied, and no content
// of that file, however malformed, makes a run fail. A mistake in a file or a
// variable that is the user's own is always an error.
package config
