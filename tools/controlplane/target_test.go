package main

import (
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
