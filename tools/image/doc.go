// Command image makes container images of static binaries, from nothing and without a container
// engine.
//
//	image archive  makes an archive of any binaries:
//	               image archive --name localhost/etcd:1 --out etcd.tar .assets/etcd
//	image build    compiles the commands of this repository and makes one image for several
//	               platforms, with a bill of materials for each; `make image` runs it
//	image tree     compiles the commands for one platform and writes the files of the image into a
//	               directory; deploy/Dockerfile runs it, so that both images have the same files
//	image export   writes the built image as an archive
//	image load     gives the built image to a container runtime; `make image-load` runs it
//
// Equal sources, flags and versions of Go make equal images: nothing in an image comes from the
// clock or from this machine.
package main
