// Package httpaccess decides which HTTP requests a server answers. The gateway and the admin
// servers use it.
//
// A server with certificates serves HTTPS only. The caller of a request is found as that of a gRPC
// call: by its client certificate or by a bearer token in the header Authorization. What the caller
// may do is decided by the same reviews.
//
// A server without certificates (--insecure) serves plain HTTP on loopback, and every caller may do
// everything.
package httpaccess
