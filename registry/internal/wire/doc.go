// Package wire is the distribution protocol below repositories: transports with TLS and proxies, retries by class of
// error, links to next pages, and error responses.
package wire
