//go:build embedkern

package kernbin

import _ "embed"

// Strings, not byte slices: the 2 MB then stay in read-only pages that nothing
// touches until kern has to be written out.

//go:embed bundled/amd64/kern
var bundledKern string

//go:embed bundled/amd64/kern.sha256
var bundledSum string
