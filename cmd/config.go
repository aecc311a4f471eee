package cmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kern-sbx/kern-sbx/pkg/config"
	"github.com/kern-sbx/kern-sbx/pkg/term"
)

func (a *app) configCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "config",
		Short:   "show, check and make the configuration",
		GroupID: groupHost,
		Long:    "Show, check and make the configuration.\n\n" + configHelp,
		Example: `  kern-sbx config init
  kern-sbx config show
  kern-sbx config trust`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	var all bool
	show := &cobra.Command{
		Use: "show", Short: "print every setting, and where it comes from", Args: cobra.NoArgs,
		Example: "  kern-sbx config show --preset ci\n  kern-sbx config show --json",
		RunE:    func(*cobra.Command, []string) error { return a.configShow(all) },
	}
	show.Flags().BoolVar(&all, "all", false, "settings that no layer changes as well")
	c.AddCommand(
		show,
		&cobra.Command{
			Use: "path", Short: "print the files that are looked for, and what became of each", Args: cobra.NoArgs,
			Example: "  kern-sbx config path",
			RunE:    func(*cobra.Command, []string) error { return a.configPath() },
		},
		&cobra.Command{
			Use: "init", Short: "write a user file with every key in it, commented out", Args: cobra.NoArgs,
			Long:    "Write a user file with every key in it, commented out. A file that is there\nalready is left alone.",
			Example: "  kern-sbx config init",
			RunE:    func(*cobra.Command, []string) error { return a.configInit() },
		},
		&cobra.Command{
			Use: "check", Short: "report every mistake in the files and variables", Args: cobra.NoArgs,
			Example: "  kern-sbx config check",
			RunE:    func(*cobra.Command, []string) error { return a.configCheck() },
		},
		&cobra.Command{
			Use: "trust [DIR]", Short: "apply all of a project file, as it is now", Args: cobra.MaximumNArgs(1),
			Long: `Record the bytes that the project file .kern-sbx.toml has now, so that all of its
keys apply. Read it first: it can give a box more than you would. When it changes,
it is no longer trusted.`,
			Example: "  cat .kern-sbx.toml && kern-sbx config trust",
			RunE: func(_ *cobra.Command, args []string) error {
				f, err := config.Trust(a.configOptions(nil), first(args))
				if err == nil {
					a.note("trusted as it is now: " + f.Path)
				}
				return err
			},
		},
		&cobra.Command{
			Use: "untrust [DIR]", Short: "take that back", Args: cobra.MaximumNArgs(1),
			Example: "  kern-sbx config untrust",
			RunE:    func(_ *cobra.Command, args []string) error { return config.Untrust(a.configOptions(nil), first(args)) },
		},
	)
	return c
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

type settingDoc struct {
	Key    string   `json:"key"`
	Values []string `json:"values"`
	Source string   `json:"source"`
}

func (a *app) configShow(all bool) error {
	conf, err := config.Load(a.configOptions(nil))
	if err != nil {
		return err
	}
	docs := []settingDoc{}
	for _, s := range conf.All() {
		if !all && s.Source.Layer == config.LayerDefault {
			continue
		}
		if s.Key.Kind == config.Map {
			// Each entry has a place of its own to come from; its value may be a
			// secret, and this is for showing to others.
			for i, v := range s.Values {
				name, _, _ := strings.Cut(v, "=")
				docs = append(docs, settingDoc{s.Key.Name + "." + name, []string{"(set)"}, s.Sources[i].String()})
			}
			continue
		}
		docs = append(docs, settingDoc{s.Key.Name, s.Values, s.Source.String()})
	}
	if a.global.json {
		return a.printJSON(docs)
	}
	w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	for _, d := range docs {
		fmt.Fprintf(w, "%s\t%s\t%s\n", term.VisibleLine(d.Key), term.VisibleLine(strings.Join(d.Values, ", ")), term.VisibleLine(d.Source))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(docs) == 0 {
		a.note("no layer sets anything; --all shows the defaults")
	}
	for _, i := range conf.Ignored() {
		a.note(strings.TrimSpace(i.Path + ": " + i.Key + " " + i.Reason))
	}
	for _, text := range conf.Warnings() {
		a.note(text)
	}
	return nil
}

func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

type fileDoc struct {
	Layer  string `json:"layer"`
	Path   string `json:"path"`
	State  string `json:"state"`
	Reason string `json:"reason"`
}

func (a *app) configPath() error {
	// A file with a mistake in it still has a path.
	conf, err := config.Load(a.configOptions(nil))
	docs := []fileDoc{}
	if conf != nil {
		for _, f := range conf.Files() {
			docs = append(docs, fileDoc{f.Layer, f.Path, string(f.State), f.Reason})
		}
	} else {
		docs = append(docs, fileDoc{config.LayerUser, config.UserFile(os.Environ(), a.env("HOME")), "", ""})
	}
	if a.global.json {
		if jerr := a.printJSON(docs); jerr != nil {
			return jerr
		}
		return err
	}
	w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	for _, d := range docs {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", d.Layer, term.VisibleLine(d.Path), d.State, term.VisibleLine(d.Reason))
	}
	w.Flush()
	return err
}

func (a *app) configCheck() error {
	errs := config.Check(a.configOptions(nil))
	for _, e := range errs {
		a.say("error", e.Error())
	}
	if len(errs) > 0 {
		return &exitError{code: 1}
	}
	a.note("no mistakes")
	return nil
}

func (a *app) configInit() error {
	path := config.UserFile(os.Environ(), a.env("HOME"))
	if path == "" {
		return errors.New("no place for a user file: neither $XDG_CONFIG_HOME nor $HOME is set")
	}
	var b strings.Builder
	b.WriteString("# kern-sbx: settings for every run. Each key is the flag of the same name;\n# kern-sbx run --help=all explains them. Nothing here is in force until the #\n# in front of it is taken away.\n\n# use-preset = \"ci\"\n")
	section := func(global bool) {
		for _, k := range a.keys(nil) {
			if k.Global != global || k.Kind == config.Map {
				continue
			}
			switch k.Kind {
			case config.List:
				fmt.Fprintf(&b, "# %s = []\n", k.Name)
			case config.Bool:
				fmt.Fprintf(&b, "# %s = %s\n", k.Name, k.Default)
			default:
				fmt.Fprintf(&b, "# %s = %q\n", k.Name, k.Default)
			}
		}
	}
	section(true)
	b.WriteString("\n[box]\n")
	section(false)
	b.WriteString("\n[box.env]\n# HOME = \"/workspace\"\n\n[preset.ci]\n# timeout = \"10m\"\n")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s is there already, and is left as it is", path)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(b.String())
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		fmt.Fprintln(a.out, path)
	}
	return err
}
