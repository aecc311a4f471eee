package config

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/spf13/viper"
)

// Kind is the shape of a key's value.
type Kind int

const (
	// Scalar is one text. A TOML string, integer or float is accepted and kept
	// as the text that the flag would get.
	Scalar Kind = iota
	// Bool is a TOML boolean, kept as "true" or "false". In a variable 1, 0 and
	// what else strconv.ParseBool reads are accepted.
	Bool
	// List is a repeated flag: a TOML array, or one value in place of an array
	// of one. In a variable: one value a line, because commas are part of many
	// values. The nearest layer's list replaces the others; an empty array is a
	// list of nothing.
	List
	// Map is a table ([box.env]) whose entries become K=V in sorted order.
	// Layers are merged entry by entry. It cannot be set by a variable.
	Map
)

// Key is one setting that a config file or variable may hold.
type Key struct {
	// Name is the flag's name: lower case, digits and dashes only.
	Name string
	Kind Kind
	// Global keys live at the top of a file; the others in [box] and presets.
	Global bool
	// Default is the text that applies when no layer sets the key; for a List
	// one value a line.
	Default string
	// Check refuses a bad value, best with a *validate.Error without a Field.
	// Nil accepts all. It sees each value of a List and each K=V of a Map.
	Check func(string) error
	// Tighter says that candidate allows a box no more than current does, so
	// that an untrusted project file may set it. Current is what the layers
	// below the project file give, or Default. Nil refuses. The values of a List
	// are joined by newlines; a Map never asks.
	Tighter func(candidate, current string) bool
	// AlwaysSafe says that an untrusted project file may set this value (each
	// value of a List, each K=V of a Map), whatever applied before.
	AlwaysSafe func(string) bool
}

// Layers, from the farthest to the nearest. A flag is nearer than all of them
// and applied by the caller.
const (
	LayerDefault = "default"
	LayerSystem  = "system"
	LayerUser    = "user"
	LayerConfig  = "config" // the file of --config
	LayerProject = "project"
	LayerEnv     = "env"
	LayerFlag    = "flag" // only for the choice of a preset
)

// Source is where a value came from.
type Source struct {
	Layer  string // one of the Layer constants
	Path   string // file, absolute; empty for env, flag and default
	Preset string // preset of that file; empty for [box] and global keys
	Name   string // variable, for env

	home string
}

// String names the source for a person: "KERN_SBX_MEMORY",
// "~/.config/kern-sbx/config.toml [preset.ci]", "default".
func (s Source) String() string {
	switch {
	case s.Name != "":
		return s.Name
	case s.Path == "":
		return s.Layer
	}
	p := s.Path
	if s.home != "" && s.home != "/" && strings.HasPrefix(p, s.home+"/") {
		p = "~" + p[len(s.home):]
	}
	p = visible(p)
	if s.Preset != "" {
		p += " [preset." + s.Preset + "]"
	}
	return p
}

// Setting is one key with the value that applies before flags.
type Setting struct {
	Key Key
	// Values is one text for Scalar and Bool, any number in file order for
	// List, and sorted K=V for Map.
	Values []string
	// Source is the nearest layer that set the key.
	Source Source
	// Sources tells, for a Map only, where each of Values came from.
	Sources []Source
}

// Options is what Load needs to know; it reads nothing from the process.
type Options struct {
	Keys []Key
	// File is the value of --config; empty leaves it to KERN_SBX_CONFIG. That
	// file is trusted and takes the place of project and user file. /dev/null
	// stands for an empty one.
	File string
	// Preset is the value of --preset; empty leaves it to KERN_SBX_PRESET, then
	// to the key use-preset at the top of the nearest trusted file.
	Preset  string
	Environ []string
	// Dir is the working directory, where the search for a project file starts.
	Dir string
	// Home is the caller's home directory; empty when there is none.
	Home string
	// UID is whose files are accepted, besides root's.
	UID int
	// SystemFile replaces /etc/kern-sbx/config.toml when not empty.
	SystemFile string
}

const (
	envPrefix   = "KERN_SBX_"
	envConfig   = "KERN_SBX_CONFIG"
	envPreset   = "KERN_SBX_PRESET"
	systemFile  = "/etc/kern-sbx/config.toml"
	projectName = ".kern-sbx.toml"
	// usePreset chooses a preset in a file. It cannot be called "preset":
	// TOML allows no text and no table of the same name in one file.
	usePreset = "use-preset"
)

// State is what became of a file.
type State string

// The states of a File.
const (
	Read      State = "read"      // applied wholly
	Absent    State = "absent"    // not there
	Skipped   State = "ignored"   // there, but not used; Reason says why
	Untrusted State = "untrusted" // only its tightening values were applied
)

// File is one config file that was looked for.
type File struct {
	Path   string // empty when there is no place to look
	Layer  string
	State  State
	Reason string // for Skipped and Untrusted
	// SHA256 is the hex digest of the bytes that were parsed, for a project
	// file only.
	SHA256 string
}

// Ignored is something of a project file that was not applied.
type Ignored struct {
	Path   string
	Key    string // "box.setup", "preset.ci.image"; empty for the whole file
	Reason string
}

// Config is the resolved layers.
type Config struct {
	keys     []Key
	index    map[string]int
	scalars  *viper.Viper
	src      []Source
	lists    map[string][]string
	maps     map[string]map[string]entry
	files    []File
	ignored  []Ignored
	warnings []string
	presets  []string
	preset   string
}

type entry struct {
	text string
	src  Source
}

// Get gives the setting of a key, and false when no layer sets it (its default
// applies) or when there is no such key.
func (c *Config) Get(name string) (Setting, bool) {
	i, ok := c.index[name]
	if !ok || c.src[i].Layer == "" {
		return Setting{}, false
	}
	return c.setting(i), true
}

// All gives every key in the order of Options.Keys, with the source "default"
// where no layer sets it.
func (c *Config) All() []Setting {
	all := make([]Setting, len(c.keys))
	for i := range c.keys {
		all[i] = c.setting(i)
	}
	return all
}

// Given gives those that a layer sets.
func (c *Config) Given() []Setting {
	var all []Setting
	for i := range c.keys {
		if c.src[i].Layer != "" || c.keys[i].Kind == Map && len(c.maps[c.keys[i].Name]) > 0 {
			all = append(all, c.setting(i))
		}
	}
	return all
}

func (c *Config) setting(i int) Setting {
	k := c.keys[i]
	s := Setting{Key: k, Source: c.src[i]}
	if s.Source.Layer == "" {
		s.Source = Source{Layer: LayerDefault}
	}
	switch k.Kind {
	case List:
		if v, ok := c.lists[k.Name]; ok {
			s.Values = slices.Clone(v)
		} else if k.Default != "" {
			s.Values = strings.Split(k.Default, "\n")
		}
	case Map:
		m := c.maps[k.Name]
		for _, name := range sortedKeys(m) {
			s.Values = append(s.Values, name+"="+m[name].text)
			s.Sources = append(s.Sources, m[name].src)
		}
	default:
		// A default is not put into viper: each run would pay for each key.
		text := k.Default
		if c.src[i].Layer != "" {
			text = c.scalars.GetString(k.Name)
		} else if k.Kind == Bool && text == "" {
			text = "false"
		}
		s.Values = []string{text}
	}
	return s
}

// Files gives the files that were looked for, farthest layer first.
func (c *Config) Files() []File { return slices.Clone(c.files) }

// Ignored gives what a project file holds and was not applied, for one note.
func (c *Config) Ignored() []Ignored { return slices.Clone(c.ignored) }

// Warnings gives what did not stop the run but is probably a mistake, one line
// each.
func (c *Config) Warnings() []string { return slices.Clone(c.warnings) }

// Presets gives the names of the presets of all files, sorted.
func (c *Config) Presets() []string { return slices.Clone(c.presets) }

// Preset gives the name of the preset in use; empty when there is none.
func (c *Config) Preset() string { return c.preset }

// Load reads the layers and resolves every key. The error is the first problem
// found in anything that is the user's own; Check gives all of them.
func Load(o Options) (*Config, error) {
	l := load(o, false)
	if len(l.problems) > 0 {
		return nil, l.problems[0]
	}
	return l.c, nil
}

// Check gives every problem of all files and variables, those of an untrusted
// project file included, which Load only lists as ignored. Nil means none.
func Check(o Options) []error {
	l := load(o, true)
	errs := make([]error, 0, len(l.problems)+len(l.foreign))
	for _, p := range append(l.problems, l.foreign...) {
		errs = append(errs, p)
	}
	if len(errs) == 0 {
		return nil
	}
	return errs
}

// Problem is one mistake in a file or variable. It wraps the refusal of the
// key's Check, where that is the cause.
type Problem struct {
	Path string // file; empty for variables and flags
	Line int    // 0 when unknown
	Col  int    // 0 when unknown
	Key  string // "box.memory", a variable's or a flag's name; may be empty
	Err  error
}

// Error gives one line: file, line, column, key and reason.
func (p *Problem) Error() string {
	s := ""
	if p.Path != "" {
		s = visible(p.Path)
		if p.Line > 0 {
			s += ":" + strconv.Itoa(p.Line)
			if p.Col > 0 {
				s += ":" + strconv.Itoa(p.Col)
			}
		}
		s += ": "
	}
	var v *validate.Error
	if p.Key != "" && errors.As(p.Err, &v) {
		c := *v
		c.Field = p.Key
		return s + c.Error()
	}
	if p.Key != "" {
		s += p.Key + ": "
	}
	return s + p.Err.Error()
}

// Unwrap gives the cause.
func (p *Problem) Unwrap() error { return p.Err }

// loader builds a Config. It goes on after a problem, so that Check sees all.
type loader struct {
	o        Options
	c        *Config
	env      map[string]string // KERN_SBX_*, XDG_CONFIG_HOME
	layers   []*layer          // farthest first
	problems []*Problem
	foreign  []*Problem // of an untrusted project file
	// missed says why the project file was not used, for the message about a
	// preset that may have been in it.
	missed string
	// all asks for the lines of an untrusted file's problems too, which cost
	// a second look at it.
	all bool
}

// layer is one parsed file.
type layer struct {
	name, path string
	trusted    bool
	doc        *document
}

func load(o Options, all bool) *loader {
	l := newLoader(o)
	l.all = all
	if len(l.problems) > 0 {
		return l
	}
	l.readFiles()
	l.choosePreset()
	for _, y := range l.layers {
		if y.trusted {
			l.applyTrusted(y)
		} else {
			l.applyUntrusted(y)
		}
	}
	l.applyEnv()
	return l
}

func newLoader(o Options) *loader {
	l := &loader{o: o, env: environ(o.Environ), c: &Config{
		keys: o.Keys, index: make(map[string]int, len(o.Keys)), scalars: viper.New(),
		src: make([]Source, len(o.Keys)),
	}}
	for i, k := range o.Keys {
		if !keyName(k.Name) {
			// viper would lower-case the name or split it at a dot, and the
			// value would silently belong to another key.
			l.problem("", k.Name, errors.New("a key is lower-case letters, digits and dashes"))
			return l
		}
		l.c.index[k.Name] = i
	}
	return l
}

func keyName(s string) bool {
	for i := range len(s) {
		if b := s[i]; b != '-' && (b < '0' || b > '9') && (b < 'a' || b > 'z') {
			return false
		}
	}
	return s != ""
}

func (l *loader) problem(path, key string, err error) {
	l.problems = append(l.problems, &Problem{Path: path, Key: key, Err: err})
}

func (l *loader) warn(s string) { l.c.warnings = append(l.c.warnings, s) }

// environ picks the variables that matter. The first of two of the same name
// counts, as it does for os.Getenv.
func environ(list []string) map[string]string {
	env := make(map[string]string)
	for _, e := range list {
		if !strings.HasPrefix(e, envPrefix) && !strings.HasPrefix(e, "XDG_CONFIG_HOME=") {
			continue
		}
		name, value, ok := strings.Cut(e, "=")
		if _, seen := env[name]; ok && !seen {
			env[name] = value
		}
	}
	return env
}

// choosePreset decides which preset applies and collects the names of all.
func (l *loader) choosePreset() {
	for _, y := range l.layers {
		for name := range y.doc.presets {
			if !slices.Contains(l.c.presets, name) {
				l.c.presets = append(l.c.presets, name)
			}
		}
	}
	slices.Sort(l.c.presets)
	name, src := l.o.Preset, Source{Layer: LayerFlag}
	path, key := "", "--preset"
	if name == "" {
		name, key = l.env[envPreset], envPreset
		src = Source{Layer: LayerEnv, Name: envPreset}
	}
	for i := len(l.layers) - 1; i >= 0 && name == ""; i-- {
		y := l.layers[i]
		switch {
		case y.doc.usePreset == "":
		case !y.trusted:
			// A project file that picks one of the user's presets could pick
			// the one that opens most.
			l.ignore(y.path, usePreset, needsTrust)
		default:
			name, path, key = y.doc.usePreset, y.path, usePreset
			src = Source{Layer: y.name, Path: y.path, home: l.o.Home}
		}
	}
	if name == "" {
		return
	}
	if !slices.Contains(l.c.presets, name) {
		reason := "no config file has a preset of this name"
		if l.missed != "" {
			reason += " (" + l.missed + ")"
		}
		fix := "write [preset.NAME] in a config file first"
		if n := validate.Nearest(name, l.c.presets); n != "" {
			fix = "the nearest is " + n
		} else if len(l.c.presets) > 0 {
			fix = "there is: " + strings.Join(l.c.presets, ", ")
		}
		l.problem(path, key, &validate.Error{Value: name, Reason: reason, Fix: fix})
		return
	}
	l.c.preset = name
	l.set("preset", name, src)
}

// set records how a reserved key got its value, where the caller lists it.
func (l *loader) set(key, value string, src Source) {
	if i, ok := l.c.index[key]; ok {
		l.c.scalars.Set(key, value)
		l.c.src[i] = src
	}
}

// applyTrusted puts a file's values over those of the layers below it, its
// preset over its [box].
func (l *loader) applyTrusted(y *layer) {
	src := Source{Layer: y.name, Path: y.path, home: l.o.Home}
	l.c.apply(y.doc.global, src)
	l.c.apply(y.doc.box, src)
	if l.c.preset != "" {
		src.Preset = l.c.preset
		l.c.apply(y.doc.presets[l.c.preset], src)
	}
}

func (c *Config) apply(t table, src Source) {
	if len(t) == 0 {
		return
	}
	scalars := make(map[string]any, len(t))
	for name, v := range t {
		i := c.index[name]
		switch c.keys[i].Kind {
		case List:
			if c.lists == nil {
				c.lists = make(map[string][]string)
			}
			c.lists[name] = v.texts
		case Map:
			if c.maps == nil {
				c.maps = make(map[string]map[string]entry)
			}
			if c.maps[name] == nil {
				c.maps[name] = make(map[string]entry)
			}
			for k, text := range v.entries {
				c.maps[name][k] = entry{text, src}
			}
			if len(v.entries) == 0 {
				continue
			}
		default:
			scalars[name] = v.texts[0]
		}
		c.src[i] = src
	}
	// Texts only, under names without capitals or dots: the one shape that
	// viper keeps as it is.
	_ = c.scalars.MergeConfigMap(scalars) // always nil
}

// applyEnv puts the variables over everything. viper's own BindEnv would read
// the process instead of Options.Environ.
func (l *loader) applyEnv() {
	names := sortedKeys(l.env)
	for _, name := range names {
		value := l.env[name]
		suffix, ours := strings.CutPrefix(name, envPrefix)
		if !ours || name == envConfig || name == envPreset {
			continue
		}
		i, ok := l.c.index[strings.ReplaceAll(strings.ToLower(suffix), "_", "-")]
		if !ok || envName(l.c.keys[i].Name) != name {
			l.unknownVariable(name)
			continue
		}
		if value == "" {
			continue // as CI systems pass a variable that was not set
		}
		k := l.c.keys[i]
		texts := []string{value}
		switch k.Kind {
		case Map:
			l.problem("", name, errors.New("a table cannot be set by a variable; use --"+k.Name+" K=V or --"+k.Name+"-file FILE"))
			continue
		case List:
			texts = strings.Split(strings.TrimSuffix(value, "\n"), "\n")
		case Bool:
			b, err := strconv.ParseBool(value)
			if err != nil {
				l.problem("", name, &validate.Error{Value: value, Reason: "not a truth value", Fix: "write true or false"})
				continue
			}
			texts[0] = strconv.FormatBool(b)
		}
		if err := k.check(texts); err != nil {
			l.problem("", name, err)
			continue
		}
		if k.Kind == List {
			if l.c.lists == nil {
				l.c.lists = make(map[string][]string)
			}
			l.c.lists[k.Name] = texts
		} else {
			l.c.scalars.Set(k.Name, texts[0])
		}
		l.c.src[i] = Source{Layer: LayerEnv, Name: name}
	}
}

func (l *loader) unknownVariable(name string) {
	names := []string{envConfig, envPreset}
	for _, k := range l.c.keys {
		if k.Kind != Map {
			names = append(names, envName(k.Name))
		}
	}
	s := visible(name) + ": no setting has this variable"
	if n := validate.Nearest(name, names); n != "" {
		s += "; the nearest is " + n
	}
	l.warn(s)
}

func envName(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
}

func (k Key) check(texts []string) error {
	if k.Check == nil {
		return nil
	}
	for _, t := range texts {
		if err := k.Check(t); err != nil {
			return err
		}
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
