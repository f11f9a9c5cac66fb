package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/trivet-dev/trivet/test/lab/gobuild"
)

// What operators install has no simulator and no faults, and their command has no server. The nm of
// Go shows what the linker kept.
func TestBinaries_HaveNoSymbolOfTheLaboratory(t *testing.T) {
	const module = `\bgithub\.com/trivet-dev/trivet/`
	laboratory, servers := regexp.MustCompile(module+`test/lab/\S*`), regexp.MustCompile(module+`(services|gateway)[/.]\S*`)
	commands, err := os.ReadDir(filepath.Join("..", "..", "cmd"))
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"trivet-lab"}
	for _, command := range commands {
		names = append(names, command.Name())
	}
	for _, name := range names {
		symbols, err := exec.CommandContext(t.Context(), "go", "tool", "nm", gobuild.Command(t, name)).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", name, err, symbols)
		}
		found, server := laboratory.Find(symbols), servers.Find(symbols)
		switch isLaboratory := name == "trivet-lab"; {
		case isLaboratory && (found == nil || server == nil):
			t.Errorf("%s: the patterns find nothing in a program with the laboratory and the servers", name)
		case !isLaboratory && found != nil:
			t.Errorf("%s has %s", name, found)
		case name == "trivet" && server != nil:
			t.Errorf("%s has %s", name, server)
		}
	}
}
