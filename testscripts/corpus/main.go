// Command corpus asks `kern-sbx doctor -- CMD` about a file of real failures whose
// answers are known, and counts how often it is right (`make corpus`).
//
// Each line of the file is one case; setup and the rest run on this machine as they
// stand there, so the file has to be trusted.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kern-sbx/kern-sbx/testscripts/roots"
)

// testCase is one line of the corpus.
type testCase struct {
	ID         string   `json:"id"`
	Name       string   `json:"name"`
	Tool       string   `json:"tool"`
	Group      string   `json:"group"`
	Rootfs     string   `json:"rootfs"` // host, or the name of a directory of -roots
	Setup      string   `json:"setup"`
	Cmd        []string `json:"cmd"`
	BoxFlags   []string `json:"box_flags"`
	Verdict    string   `json:"verdict"` // sandbox, noise, sandbox-unfixable or not-sandbox
	Fix        []string `json:"fix"`
	AlsoFixes  []string `json:"also_fixes"`
	WrongFixes []string `json:"wrong_fixes"`
	Needs      []string `json:"needs"`
}

// answer is what is read of a diagnosis.
type answer struct {
	Verdict string `json:"verdict"`
	Why     string `json:"why"`
	Fix     *struct {
		Changes []change `json:"changes"`
	} `json:"fix"`
	Tried []struct {
		Changes []change `json:"changes"`
		Verdict string   `json:"verdict"`
		Says    string   `json:"says"`
	} `json:"tried"`
}

type change struct {
	Flag  string `json:"flag"`
	Value string `json:"value"`
}

// The judgements of a case.
const (
	right   = "right"   // the corpus' fix, one of its other ones, or its verdict
	proven  = "proven"  // another fix, which worked twice and is not known to be wrong
	wrong   = "wrong"   // a fix that the corpus knows not to help, or another verdict
	missed  = "missed"  // no answer
	skipped = "skipped" // it could not be tried here
)

// boxTimeout is the deadline that the corpus' commands failed in.
const boxTimeout = "35s"

func main() {
	log := func(a ...any) { fmt.Fprintln(os.Stderr, append([]any{"corpus:"}, a...)...) }
	file := flag.String("corpus", "", "the corpus, one JSON document a line")
	bin := flag.String("kern-sbx", "bin/kern-sbx", "the program")
	roots := flag.String("roots", "", "where the cases' root file systems are, or are built")
	builder := flag.String("make-rootfs", "", "the script that builds them (default: make-rootfs.sh beside the corpus)")
	only := flag.String("only", "", "only cases whose id contains this")
	budget := flag.Duration("budget", 2*time.Minute, "time for one case")
	verbose := flag.Bool("v", false, "show what was tried")
	flag.Parse()
	cases, err := read(*file)
	if err != nil {
		log(err)
		os.Exit(1)
	}
	if *builder == "" {
		*builder = filepath.Join(filepath.Dir(*file), "make-rootfs.sh")
	}
	r := &runner{bin: *bin, roots: *roots, builder: *builder, budget: *budget, noRoot: map[string]string{}}
	counts, groups := map[string]int{}, map[string]map[string]int{}
	var slowest time.Duration
	for _, c := range cases {
		if !strings.Contains(c.ID, *only) {
			continue
		}
		begun := time.Now()
		got, a, err := r.judge(&c)
		took := time.Since(begun)
		detail := ""
		switch {
		case err != nil:
			detail = err.Error()
		case a.Fix != nil:
			detail = text(a.Fix.Changes)
		default:
			detail = a.Verdict + ": " + a.Why
		}
		if got != skipped {
			slowest = max(slowest, took)
		}
		fmt.Printf("%-8s %5.1f s  %-28s %s\n", got, took.Seconds(), c.ID, detail)
		if got != right && got != skipped {
			fmt.Printf("%19s expected %s %s\n", "", c.Verdict, strings.Join(c.Fix, " "))
		}
		if *verbose && a != nil {
			for _, t := range a.Tried {
				fmt.Printf("%19s %-8s %s | %.150s\n", "", t.Verdict, text(t.Changes), t.Says)
			}
		}
		counts[got]++
		if groups[c.Group] == nil {
			groups[c.Group] = map[string]int{}
		}
		groups[c.Group][got]++
	}
	report(counts, groups, slowest)
	if counts[wrong] > 0 {
		os.Exit(1)
	}
}

func report(counts map[string]int, groups map[string]map[string]int, slowest time.Duration) {
	fmt.Printf("\n%-12s %6s %6s %6s %6s %7s\n", "cause", right, proven, wrong, missed, skipped)
	var names []string
	for g := range groups {
		names = append(names, g)
	}
	slices.Sort(names)
	row := func(name string, n map[string]int) {
		fmt.Printf("%-12s %6d %6d %6d %6d %7d\n", name, n[right], n[proven], n[wrong], n[missed], n[skipped])
	}
	for _, g := range names {
		row(g, groups[g])
	}
	row("all", counts)
	tried := counts[right] + counts[proven] + counts[wrong] + counts[missed]
	if tried > 0 {
		fmt.Printf("\n%d of %d right (%d %%), %d of them by another fix than the corpus has; slowest %.0f s\n",
			counts[right]+counts[proven], tried, (counts[right]+counts[proven])*100/tried, counts[proven], slowest.Seconds())
	}
}

func read(name string) ([]testCase, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []testCase
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		var c testCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if c.ID == "" {
			c.ID = c.Name
		}
		all = append(all, c)
	}
	return all, lines.Err()
}

type runner struct {
	bin, roots, builder string
	budget              time.Duration
	noRoot              map[string]string // why a root is not there
	built               bool
}

// root gives the flags of a case's root file system.
func (r *runner) root(name string) ([]string, string, error) {
	if name == "host" {
		return []string{"--image", "host"}, "", nil
	}
	dir := filepath.Join(r.roots, name)
	if _, err := os.Stat(filepath.Join(dir, "usr")); err == nil {
		return []string{"--rootfs", dir}, dir, nil
	}
	if why, ok := r.noRoot[name]; ok {
		return nil, "", errors.New(why)
	}
	if !r.built {
		r.built = true
		fmt.Fprintln(os.Stderr, "corpus: building root file systems, which takes some minutes")
		base, err := roots.Debian(context.Background(), r.roots, "base")
		if err != nil {
			base = filepath.Join(r.roots, "none") // the script knows its own way
		}
		cmd := exec.Command(r.builder, base, r.roots)
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			r.noRoot[name] = "the root " + name + " could not be built: " + err.Error()
		} else {
			return r.root(name)
		}
	}
	if _, ok := r.noRoot[name]; !ok {
		r.noRoot[name] = "there is no root " + name
	}
	return nil, "", errors.New(r.noRoot[name])
}

// judge asks about one case.
func (r *runner) judge(c *testCase) (string, *answer, error) {
	rootFlags, rootDir, err := r.root(c.Rootfs)
	if err != nil {
		return skipped, nil, err
	}
	tmp, err := os.MkdirTemp("", "kern-sbx-corpus-")
	if err != nil {
		return skipped, nil, err
	}
	defer removeAll(tmp)
	ws := filepath.Join(tmp, "ws")
	if err := os.Mkdir(ws, 0o755); err != nil {
		return skipped, nil, err
	}
	if c.Setup != "" {
		cmd := exec.Command("bash", "-e", "-c", c.Setup)
		cmd.Dir, cmd.Env = ws, append(os.Environ(), "WS="+ws, "ROOTFS="+rootDir)
		if out, err := cmd.CombinedOutput(); err != nil {
			return skipped, nil, fmt.Errorf("its setup failed: %w: %.200s", err, out)
		}
	}
	args := append([]string{"doctor", "--json", "--allow-relax", "--budget", r.budget.String(), "--timeout", boxTimeout, "-W", ws}, rootFlags...)
	for _, f := range c.BoxFlags {
		for _, x := range translate(f) {
			args = append(args, "--"+x.Flag, x.Value)
		}
	}
	args = append(append(args, "--"), c.Cmd...)
	ctx, cancel := context.WithTimeout(context.Background(), r.budget+time.Minute)
	defer cancel()
	words := append([]string{r.bin}, args...)
	if slices.Contains(c.Needs, "subid") {
		// A range of users of our own, for this program alone.
		if os.Getuid() != 0 {
			return skipped, nil, errors.New("it needs a range of user ids, and root to make one")
		}
		ids := filepath.Join(tmp, "ids")
		if err := os.WriteFile(ids, []byte("root:100000:65536\n"), 0o644); err != nil {
			return skipped, nil, err
		}
		words = append([]string{"unshare", "-m", "sh", "-ec", `for f in subuid subgid; do mount --bind "$0" /etc/$f; done; exec "$@"`, ids}, words...)
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var a answer
	if jerr := json.Unmarshal(out, &a); jerr != nil {
		return missed, nil, fmt.Errorf("no document: %v %v: %.300s", err, jerr, stderr.String())
	}
	return verdict(c, &a), &a, nil
}

// removeAll removes directories of mode 0555 as well.
func removeAll(dir string) {
	filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			os.Chmod(p, 0o700)
		}
		return nil
	})
	os.RemoveAll(dir)
}

func verdict(c *testCase, a *answer) string {
	switch a.Verdict {
	case "works":
		if c.Verdict == "noise" {
			return missed
		}
		return skipped // it does not fail here
	case "not-found", "flaky":
		return missed
	case "fixed":
		if c.Verdict != "sandbox" && c.Verdict != "noise" {
			return wrong
		}
		got := a.Fix.Changes
		for _, f := range append([]string{strings.Join(c.Fix, " + ")}, c.AlsoFixes...) {
			if equal(got, set(f)) {
				return right
			}
		}
		for _, f := range c.WrongFixes {
			if exact(got, set(f)) {
				return wrong
			}
		}
		return proven
	}
	if a.Verdict == c.Verdict {
		return right
	}
	return wrong
}

// set reads a fix: changes joined by " + ".
func set(fix string) []change {
	var all []change
	for one := range strings.SplitSeq(fix, " + ") {
		all = append(all, translate(one)...)
	}
	return all
}

// translate gives the flags of kern-sbx for one of the corpus' words. What a box of
// ours has in any case is nothing.
func translate(word string) []change {
	k, v, _ := strings.Cut(word, "=")
	switch k {
	case "mount":
		if strings.HasPrefix(v, "/etc/") {
			return nil // the host image has what programs need of it
		}
		k = "volume"
	case "net":
		k = "network"
	case "uid-range":
		return nil // comes with --cap-drop none
	case "timeout":
		if strings.Trim(v, "0123456789") == "" {
			v += "s"
		}
	}
	return []change{{k, v}}
}

// equal says whether a fix is the corpus' one. How much of something is given is
// left to the trials, which proved it; a narrower permission or mount is as good.
func equal(got, want []change) bool {
	covers := func(g, w change) bool {
		switch {
		case w.Flag == "cap-drop" && g.Flag == "cap-add", w.Flag == "volume" && g.Flag == "host-tool":
			return true
		case g.Flag != w.Flag:
			return false
		}
		switch w.Flag {
		case "memory", "pids-limit", "timeout":
			return true
		case "tmpfs":
			return head(g.Value) == head(w.Value)
		case "volume":
			return head(g.Value) == head(w.Value) || strings.HasPrefix(head(g.Value), head(w.Value)+"/")
		}
		return g.Value == w.Value
	}
	for _, g := range got {
		if !slices.ContainsFunc(want, func(w change) bool { return covers(g, w) }) {
			return false
		}
	}
	for _, w := range want {
		if !slices.ContainsFunc(got, func(g change) bool { return covers(g, w) }) {
			return false
		}
	}
	return true
}

func exact(got, want []change) bool {
	if len(got) != len(want) {
		return false
	}
	for _, g := range got {
		if !slices.Contains(want, g) {
			return false
		}
	}
	return true
}

func head(s string) string { h, _, _ := strings.Cut(s, ":"); return h }

func text(changes []change) string {
	words := make([]string, len(changes))
	for i, c := range changes {
		words[i] = "--" + c.Flag + " " + c.Value
	}
	return strings.Join(words, " ")
}
