package validate

// Nearest gives the candidate that word was most likely meant to be, or "" when
// none is near: at most two edits (a swap of neighbours is one), or a third of
// the word, and never more than half of it. Case does not count. Of equally
// near ones the first is given.
func Nearest(word string, candidates []string) string {
	if word == "" || len(word) > 64 {
		return ""
	}
	w, best, found := lower(word), 0, ""
	for _, c := range candidates {
		if c == "" || len(c) > 64 {
			continue
		}
		limit := max(2, len(w)/3)
		limit = min(limit, max(len(w), len(c))/2)
		if d := distance(w, lower(c)); d <= limit && (found == "" || d < best) {
			best, found = d, c
		}
	}
	return found
}

// distance counts insertions, deletions, replacements and swaps of neighbours.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			same := 1
			if a[i-1] == b[j-1] {
				same = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+same)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
