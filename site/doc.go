// Package site copies everything that the devices of a site need to a registry or media that they can reach.
//
// A signed state names everything that a device loads, down to the last layer. [Close] follows these names from the tags of
// devices; [Mirror] copies the result into the site's registry, with all signatures, and sets the devices' tags last.
package site
