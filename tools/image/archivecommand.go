package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// runArchive makes an image of any static binaries and writes it as an archive.
func runArchive(args []string, progress io.Writer) error {
	flags := flag.NewFlagSet("image archive", flag.ContinueOnError)
	imageName := flags.String("name", "", "name of the image, with a tag")
	out := flags.String("out", "", "the archive to write")
	entrypoint := flags.String("entrypoint", "", "path of the default command; without it, the only executable")
	user := flags.String("user", "", "user of the default command; without it, root")
	roots := flags.Bool("roots", true, "add the public authorities as "+rootsPath)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *imageName == "" || *out == "" || flags.NArg() == 0 {
		return usageError("--name, --out and a file are required")
	}
	tag, err := parseTag(*imageName)
	if err != nil {
		return err
	}
	image, err := imageOfFiles(flags.Args(), *entrypoint, *user, *roots)
	if err != nil {
		return err
	}
	content, err := imageContent(image)
	if err != nil {
		return err
	}
	size, err := writeArchiveFile(*out, tag, content)
	if err != nil {
		return err
	}
	fmt.Fprintf(progress, "%s %s in %s, %.1f MiB\n", tag, content.root.Digest, *out, mebibytes(size))
	return nil
}

// imageOfFiles returns an image of the given files, one layer for each, above a common base.
func imageOfFiles(arguments []string, entrypoint, user string, roots bool) (v1.Image, error) {
	base := baseFiles()
	if roots {
		authorities, err := rootsFiles()
		if err != nil {
			return nil, err
		}
		base = append(base, authorities...)
	}
	layers, files := [][]file{base}, []file{}
	for _, argument := range arguments {
		f, err := sourceFile(argument)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
		layers = append(layers, []file{f})
	}
	if _, err := withParents(append(base, files...)); err != nil {
		return nil, err
	}
	platform, err := platformOf(files)
	if err != nil {
		return nil, err
	}
	command, err := entrypointOf(entrypoint, files)
	if err != nil {
		return nil, err
	}
	return newImage(imageSpec{
		platform:    platform,
		user:        user,
		entrypoint:  command,
		created:     time.Unix(0, 0),
		layers:      layers,
		compression: quickGzip,
	})
}

// writeArchiveFile puts an archive in its place, whole or not at all, and returns its size.
func writeArchiveFile(out string, tag name.Tag, content archiveContent) (int64, error) {
	partial := out + ".partial"
	defer os.Remove(partial)
	archive, err := os.Create(partial)
	if err != nil {
		return 0, err
	}
	defer archive.Close()
	buffered := bufio.NewWriterSize(archive, 1<<20)
	if err := errors.Join(writeArchive(buffered, tag, content), buffered.Flush()); err != nil {
		return 0, fmt.Errorf("write %s: %w", out, err)
	}
	info, err := archive.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), os.Rename(partial, out)
}
