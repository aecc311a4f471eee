package cmd

import (
	"debug/elf"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestImportsGolden: nobody links a heavy library into every shell line by
// accident. After a change that is meant: go test ./cmd -run Golden -update.
func TestImportsGolden(t *testing.T) {
	c := exec.Command("go", "list", "-deps", ".")
	c.Dir = ".."
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	// The standard library's own internals change with every Go.
	var keep []string
	for _, p := range strings.Fields(string(out)) {
		if first, _, _ := strings.Cut(p, "/"); first != "internal" && first != "vendor" && !strings.Contains(p, "/internal/") || strings.Contains(first, ".") {
			keep = append(keep, p)
		}
	}
	slices.Sort(keep)
	got := strings.Join(keep, "\n") + "\n"
	const golden = "testdata/imports.golden"
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	had := strings.Fields(string(want))
	for _, p := range keep {
		if !slices.Contains(had, p) {
			t.Errorf("the main program now imports %s", p)
		}
	}
	for _, p := range had {
		if !slices.Contains(keep, p) {
			t.Errorf("the main program no longer imports %s", p)
		}
	}
	if t.Failed() {
		t.Log("if that is meant: go test ./cmd -run Golden -update")
	}
	for _, p := range keep {
		if p == "testing" || p == "github.com/spf13/cobra/doc" || strings.HasPrefix(p, "github.com/kern-sbx/") && strings.HasSuffix(p, "test") {
			t.Errorf("the main program imports %s, which is for tests", p)
		}
	}
}

// TestStatic: the program runs on any machine, so it needs no interpreter
// (dynamic linker) and no library.
func TestStatic(t *testing.T) {
	bin := buildProgram(t)
	f, err := elf.Open(bin)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the program has a segment %s", p.Type)
		}
	}
	if libs, err := f.ImportedLibraries(); err == nil && len(libs) > 0 {
		t.Errorf("the program needs %v", libs)
	}
}

// buildProgram builds kern-sbx as it is shipped, without kern inside.
func buildProgram(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "kern-sbx")
	c := exec.Command("go", "build", "-o", bin, ".")
	c.Dir = ".."
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// sources parses every file of the module that is part of the program: tests,
// test rigs and programs of the build are left out.
func sources(t *testing.T, mode parser.Mode, visit func(pkg, file string, f *ast.File)) {
	t.Helper()
	set := token.NewFileSet()
	err := filepath.WalkDir("..", func(p string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel("..", p)
		switch {
		case err != nil:
			return err
		case d.IsDir() && rel != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || rel == "bin" || rel == "testscripts"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(set, p, nil, mode)
		if err != nil {
			return err
		}
		visit(filepath.ToSlash(filepath.Dir(rel)), rel, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRooms holds the walls between the packages (the table of the design).
func TestRooms(t *testing.T) {
	// Who may start a process.
	starters := []string{"pkg/runner", "pkg/kernbin", "pkg/pool", "pkg/doctor"}
	within := func(pkg string, rooms ...string) bool {
		return slices.ContainsFunc(rooms, func(r string) bool { return pkg == r || strings.HasPrefix(pkg, r+"/") })
	}
	// What is a program of its own (run during the build, or in a box), or a
	// package that only tests import.
	own := func(f *ast.File) bool { return f.Name.Name == "main" || strings.HasSuffix(f.Name.Name, "test") }
	sources(t, 0, func(pkg, file string, f *ast.File) {
		if own(f) && pkg != "." {
			return
		}
		for _, im := range f.Imports {
			p, err := strconv.Unquote(im.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case p == "os/exec" && !within(pkg, starters...):
				t.Errorf("%s imports os/exec: only %v may start processes", file, starters)
			case within(pkg, "pkg") && (p == "github.com/spf13/cobra" || strings.HasPrefix(p, "github.com/kern-sbx/kern-sbx/cmd")):
				t.Errorf("%s imports %s: packages below pkg/ know nothing of the command line", file, p)
			case p == "github.com/spf13/viper" && !within(pkg, "pkg/config"):
				t.Errorf("%s imports viper, which belongs to pkg/config", file)
			case strings.HasPrefix(p, "github.com/kern-sbx/kern-sbx/pkg/") && within(pkg, "pkg/validate") && pkg != "pkg/validate":
				t.Errorf("%s imports %s: validate stands on nothing", file, p)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := s.X.(*ast.Ident)
			if !ok || x.Obj != nil {
				return true
			}
			start := x.Name == "os" && s.Sel.Name == "StartProcess" ||
				(x.Name == "syscall" || x.Name == "unix") && (s.Sel.Name == "ForkExec" || s.Sel.Name == "StartProcess")
			if start && !within(pkg, starters...) {
				t.Errorf("%s calls %s.%s: only %v may start processes", file, x.Name, s.Sel.Name, starters)
			}
			return true
		})
	})
}

// TestPackageComments: every package says once what it guarantees.
func TestPackageComments(t *testing.T) {
	all, docs := map[string]bool{}, map[string][]string{}
	sources(t, parser.ParseComments|parser.PackageClauseOnly, func(pkg, file string, f *ast.File) {
		all[pkg] = true
		if f.Doc != nil && strings.TrimSpace(f.Doc.Text()) != "" {
			docs[pkg] = append(docs[pkg], file)
		}
	})
	for pkg := range all {
		if n := len(docs[pkg]); n != 1 {
			t.Errorf("%s has %d package comments, want one: %v", pkg, n, docs[pkg])
		}
	}
}
