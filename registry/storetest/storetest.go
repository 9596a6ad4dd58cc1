// Package storetest is the suite that every place that can hold artifacts has to pass: registries and OCI layouts alike.
package storetest
