package cmd

import (
	"os"
	"strings"
	"testing"
)

// TestExitTableIsInTheReadme holds the README to the one table.
func TestExitTableIsInTheReadme(t *testing.T) {
	b, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range exitTable {
		if row := "| " + e.Code + " | " + e.When + " |"; !strings.Contains(string(b), row) {
			t.Errorf("the README lacks the row %q", row)
		}
	}
}
