package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

const (
	imageReference = "image"
	// sumProperty is the name of a property: the module's checksum as go.sum has it.
	sumProperty = "trivet:go-sum"
)

// billOfMaterials returns the bill of materials of an image, as CycloneDX JSON: its binaries, and
// the modules that each is linked from, as the binary itself says. Equal images have equal bills.
func billOfMaterials(image platformImage, r release) ([]byte, error) {
	digest, err := image.image.Digest()
	if err != nil {
		return nil, err
	}
	bill := newBill(r)
	for _, name := range commands() {
		if err := bill.addBinary(filepath.Join(image.binaries, name)); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	roots, err := rootsComponent()
	if err != nil {
		return nil, err
	}
	bill.add(roots)
	bill.dependencies[imageReference] = append(bill.dependencies[imageReference], roots.BOMRef)
	return bill.encode(cdx.Component{
		BOMRef:     imageReference,
		Type:       cdx.ComponentTypeContainer,
		Name:       "trivet",
		Version:    r.version,
		PackageURL: fmt.Sprintf("pkg:oci/trivet@%s?arch=%s", strings.Replace(digest.String(), ":", "%3A", 1), image.platform.Architecture),
		Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: digest.Hex}},
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: licenses}}},
	}, digest.Hex)
}

// bill collects components and what depends on what, by reference.
type bill struct {
	release      release
	components   map[string]cdx.Component
	dependencies map[string][]string
}

func newBill(r release) *bill {
	return &bill{release: r, components: map[string]cdx.Component{}, dependencies: map[string][]string{}}
}

func (b *bill) add(component cdx.Component) { b.components[component.BOMRef] = component }

// addBinary adds a binary and the modules that it is linked from.
func (b *bill) addBinary(path string) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	name := "/" + filepath.Base(path)
	b.add(cdx.Component{
		BOMRef:     name,
		Type:       cdx.ComponentTypeApplication,
		Name:       name,
		Version:    b.release.version,
		PackageURL: goPackageURL(info.Main.Path, b.release.version),
		Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: licenses}}},
	})
	b.dependencies[imageReference] = append(b.dependencies[imageReference], name)
	modules := []*debug.Module{{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, module := range append(modules, info.Deps...) {
		if module.Replace != nil {
			module = module.Replace
		}
		component := moduleComponent(module)
		b.add(component)
		b.dependencies[name] = append(b.dependencies[name], component.BOMRef)
	}
	return nil
}

func moduleComponent(module *debug.Module) cdx.Component {
	packageURL := goPackageURL(module.Path, module.Version)
	component := cdx.Component{
		BOMRef:     packageURL,
		Type:       cdx.ComponentTypeLibrary,
		Name:       module.Path,
		Version:    module.Version,
		PackageURL: packageURL,
	}
	if module.Sum != "" {
		component.Properties = &[]cdx.Property{{Name: sumProperty, Value: module.Sum}}
	}
	return component
}

// rootsComponent is the module that the public authorities come from.
func rootsComponent() (cdx.Component, error) {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, module := range info.Deps {
			if module.Path == rootsModule {
				component := moduleComponent(module)
				component.Type, component.Description = cdx.ComponentTypeData, "The public authorities in "+rootsPath
				return component, nil
			}
		}
	}
	return cdx.Component{}, fmt.Errorf("this program does not know its version of %s", rootsModule)
}

// goPackageURL follows the type golang of the package URL specification.
func goPackageURL(path, version string) string {
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
}

// encode returns the bill of image as JSON. Its serial number is made of the image's digest.
func (b *bill) encode(image cdx.Component, digestHex string) ([]byte, error) {
	bom := cdx.NewBOM()
	bom.SerialNumber = serialNumber(digestHex)
	bom.Metadata = &cdx.Metadata{Timestamp: b.release.created.UTC().Format(time.RFC3339), Component: &image}
	components := make([]cdx.Component, 0, len(b.components))
	for _, component := range b.components {
		components = append(components, component)
	}
	slices.SortFunc(components, func(x, y cdx.Component) int { return strings.Compare(x.BOMRef, y.BOMRef) })
	bom.Components = &components
	var dependencies []cdx.Dependency
	for reference, on := range b.dependencies {
		slices.Sort(on)
		dependencies = append(dependencies, cdx.Dependency{Ref: reference, Dependencies: &on})
	}
	slices.SortFunc(dependencies, func(x, y cdx.Dependency) int { return strings.Compare(x.Ref, y.Ref) })
	bom.Dependencies = &dependencies
	var out bytes.Buffer
	err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).EncodeVersion(bom, cdx.SpecVersion1_6)
	return out.Bytes(), err
}

// serialNumber returns a UUID of version 8, which applications make as they like (RFC 9562).
func serialNumber(digestHex string) string {
	d := digestHex
	return fmt.Sprintf("urn:uuid:%s-%s-8%s-8%s-%s", d[0:8], d[8:12], d[13:16], d[17:20], d[20:32])
}
