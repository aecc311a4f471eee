// Package pin reads kern.pin, the one file that says which kern a release
// carries; anything in it that is not exactly understood is an error.
package pin
