package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTargetsOf_OurGoModNamesEveryVersion(t *testing.T) {
	all, err := targetsOf(goMod)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, target := range slices.Concat(all.controlPlane, all.rivals, all.nodes) {
		names = append(names, target.name)
		if !strings.HasPrefix(target.version, "v") {
			t.Errorf("version of %s is %q", target.name, target.version)
		}
	}
	if got := strings.Join(names, " "); got != "etcd kube-apiserver kube-controller-manager kube-scheduler kubelet" {
		t.Errorf("targets are %q", got)
	}
}

func TestVersionOf_ReadsBothFormsOfRequirement(t *testing.T) {
	const text = "module m\n\ntool a.example/x\n\nrequire a.example/x v1.2.3 // indirect\n\nrequire (\n\tb.example/y v0.4.0\n)\n\nreplace c.example/z => c.example/z v0.1.0\n"
	for module, want := range map[string]string{"a.example/x": "v1.2.3", "b.example/y": "v0.4.0"} {
		if got, err := versionOf(module, text); got != want || err != nil {
			t.Errorf("version of %s is %q, %v, want %q", module, got, err, want)
		}
	}
	if got, err := versionOf("c.example/z", text); err == nil {
		t.Errorf("version of a module that is only replaced is %q, want an error", got)
	}
}

func TestStampVersion_TellsTheServerWhatItIs(t *testing.T) {
	const want = "-X k8s.io/component-base/version.gitVersion=v1.37.1 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"
	if got := stampVersion("v1.37.1"); got != want {
		t.Errorf("flags are %q, want %q", got, want)
	}
}

// One other version compiles again all that is above its module, which no other test notices.
func TestGoMod_RequiresTheVersionsOfTrivet(t *testing.T) {
	trivet, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	shared := 0
	for line := range strings.Lines(string(trivet)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || !strings.HasPrefix(fields[1], "v") {
			continue
		}
		ours, err := versionOf(fields[0], goMod)
		if err != nil {
			continue // no module of the control plane
		}
		shared++
		if ours != fields[1] {
			t.Errorf("%s is %s here and %s in ../../go.mod: give both the newer one with `go get`, then `go mod tidy`", fields[0], ours, fields[1])
		}
	}
	if shared < 50 {
		t.Errorf("%d modules in common, want 50 or more: is go.mod read as it is written?", shared)
	}
}

func TestBuildTags_AreThoseOfTheMakefile(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "GOTAGS  := " + buildTags + "\n"; !strings.Contains(string(makefile), want) {
		t.Errorf("the Makefile has no line %q: what Trivet and the control plane have in common is compiled twice", want)
	}
}
