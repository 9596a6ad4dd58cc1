// Package site carries what the devices of a site need to where they can reach it.
//
// A signed state names everything that a device loads, down to the last layer. [Close] follows these names from the tags of
// devices; [Mirror] copies what it found into the site's registry, with all signatures, and sets the devices' tags last.
package site
