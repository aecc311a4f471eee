// Package hints holds what a run itself knows of its failure (the verdict, the
// command line, what was asked for) as one table of hints with the flag that
// helps, and the texts of explain. What programs print when a box is in their way
// is the table of package doctor, which also tries it; run asks both.
package hints
