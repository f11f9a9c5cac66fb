// Command image makes container images of static binaries, from nothing and without a container
// engine.
//
//	go run . archive --name localhost/etcd:1 --out etcd.tar ../../.assets/etcd
package main
