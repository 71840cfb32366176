#include "shim.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

/* jpeglib.h needs stdio.h before it, and jerror.h needs both. */
/* clang-format off */
#include <jpeglib.h>
#include <jerror.h>
/* clang-format on */

#ifndef LIBJPEG_TURBO_VERSION_NUMBER
#error "libjpeg-turbo is needed: other libjpegs differ in pixels"
#endif

/* Rows handed to libjpeg in one call. */
#define BATCH 16

struct mm_jpeg {
  struct jpeg_decompress_struct cinfo;
  struct jpeg_error_mgr errors;
  struct jpeg_source_mgr source;
  struct jpeg_progress_mgr progress;
  jmp_buf escape;
  int status;
  uint32_t scans;
  int fill;
};

static mm_jpeg* owner(j_common_ptr cinfo) { return (mm_jpeg*)cinfo->client_data; }

static void leave(j_common_ptr cinfo) {
  mm_jpeg* handle = owner(cinfo);
  if (handle->status == MM_JPEG_OK) {
    switch (cinfo->err->msg_code) {
      case JERR_OUT_OF_MEMORY:
      case JERR_NO_BACKING_STORE:
      case JERR_WIDTH_OVERFLOW:
        handle->status = MM_JPEG_MEMORY;
        break;
      case JERR_SOF_UNSUPPORTED:
      case JERR_ARITH_NOTIMPL:
      case JERR_CONVERSION_NOTIMPL:
      case JERR_NOT_COMPILED:
      case JERR_FRACT_SAMPLE_NOTIMPL:
      case JERR_CCIR601_NOTIMPL:
      case JERR_BAD_PRECISION:
        handle->status = MM_JPEG_UNSUPPORTED;
        break;
      default:
        handle->status = MM_JPEG_DAMAGED;
    }
  }
  longjmp(handle->escape, 1);
}

/* Warnings are Pillow's to ignore: libjpeg's own recovery yields the same pixels there. */
static void ignore_level(j_common_ptr cinfo, int level) {
  (void)cinfo;
  (void)level;
}

static void ignore(j_common_ptr cinfo) { (void)cinfo; }

static void init_source(j_decompress_ptr cinfo) { (void)cinfo; }

static boolean fill_input(j_decompress_ptr cinfo) {
  static const JOCTET end[2] = {0xFF, JPEG_EOI};
  if (!owner((j_common_ptr)cinfo)->fill) {
    return FALSE; /* suspends: the caller sees how far decoding came */
  }
  cinfo->src->next_input_byte = end;
  cinfo->src->bytes_in_buffer = sizeof end;
  return TRUE;
}

static void skip_input(j_decompress_ptr cinfo, long count) {
  struct jpeg_source_mgr* source = cinfo->src;
  if (count <= 0) {
    return;
  }
  if ((size_t)count > source->bytes_in_buffer) {
    count = (long)source->bytes_in_buffer;
  }
  source->next_input_byte += count;
  source->bytes_in_buffer -= (size_t)count;
}

static void count_scans(j_common_ptr cinfo) {
  mm_jpeg* handle = owner(cinfo);
  if ((uint32_t)handle->cinfo.input_scan_number > handle->scans) {
    handle->status = MM_JPEG_SCANS;
    leave(cinfo);
  }
}

static void feed(mm_jpeg* handle, const uint8_t* data, size_t size) {
  handle->source.next_input_byte = data;
  handle->source.bytes_in_buffer = size;
}

/* Bytes of the coefficient arrays that a file with several scans needs. */
static uint64_t coefficients(mm_jpeg* handle) {
  struct jpeg_decompress_struct* cinfo = &handle->cinfo;
  uint64_t sum = 0;
  if (!jpeg_has_multiple_scans(cinfo)) {
    return 0;
  }
  for (int i = 0; i < cinfo->num_components; i++) {
    const jpeg_component_info* part = &cinfo->comp_info[i];
    uint64_t columns = (uint64_t)part->width_in_blocks + (uint64_t)part->h_samp_factor;
    uint64_t rows = (uint64_t)part->height_in_blocks + (uint64_t)part->v_samp_factor;
    sum += columns * rows * sizeof(JBLOCK);
  }
  return sum;
}

int mm_jpeg_open(const mm_jpeg_source* source, mm_jpeg** out, mm_jpeg_shape* shape) {
  mm_jpeg* handle = calloc(1, sizeof *handle);
  if (handle == NULL) {
    return MM_JPEG_MEMORY;
  }
  struct jpeg_decompress_struct* cinfo = &handle->cinfo;
  cinfo->err = jpeg_std_error(&handle->errors);
  handle->errors.error_exit = leave;
  handle->errors.emit_message = ignore_level;
  handle->errors.output_message = ignore;
  cinfo->client_data = handle;
  if (setjmp(handle->escape)) {
    int status = handle->status;
    mm_jpeg_close(handle);
    return status;
  }
  jpeg_create_decompress(cinfo);
  cinfo->client_data = handle;
  cinfo->mem->max_memory_to_use =
      source->memory > INT32_MAX * UINT64_C(1024) ? (long)(INT32_MAX * UINT64_C(1024)) : (long)source->memory;
  handle->scans = source->scans;
  handle->fill = source->fill;
  handle->source.init_source = init_source;
  handle->source.fill_input_buffer = fill_input;
  handle->source.skip_input_data = skip_input;
  handle->source.resync_to_restart = jpeg_resync_to_restart;
  handle->source.term_source = init_source;
  cinfo->src = &handle->source;
  handle->progress.progress_monitor = count_scans;
  cinfo->progress = &handle->progress;

  int status = MM_JPEG_OK;
  if (source->tables_size > 0) {
    feed(handle, source->tables, source->tables_size);
    if (jpeg_read_header(cinfo, FALSE) != JPEG_HEADER_TABLES_ONLY) {
      status = MM_JPEG_DAMAGED;
    }
  }
  feed(handle, source->data, source->size);
  int read = JPEG_HEADER_TABLES_ONLY;
  while (status == MM_JPEG_OK && read == JPEG_HEADER_TABLES_ONLY) {
    read = jpeg_read_header(cinfo, FALSE);
  }
  if (status == MM_JPEG_OK && read == JPEG_SUSPENDED) {
    status = MM_JPEG_TRUNCATED;
  }
  if (status != MM_JPEG_OK) {
    mm_jpeg_close(handle);
    return status;
  }
  shape->width = cinfo->image_width;
  shape->height = cinfo->image_height;
  shape->components = (uint32_t)cinfo->num_components;
  shape->memory = coefficients(handle);
  *out = handle;
  return MM_JPEG_OK;
}

int mm_jpeg_start(mm_jpeg* handle, int output) {
  struct jpeg_decompress_struct* cinfo = &handle->cinfo;
  if (setjmp(handle->escape)) {
    return handle->status;
  }
  switch (output) {
    case MM_JPEG_RGB:
      cinfo->out_color_space = JCS_RGB;
      break;
    case MM_JPEG_CMYK:
      cinfo->out_color_space = JCS_CMYK;
      break;
    case MM_JPEG_RGB_FROM_YCBCR:
      cinfo->jpeg_color_space = JCS_YCbCr;
      cinfo->out_color_space = JCS_RGB;
      break;
    default:
      cinfo->jpeg_color_space = JCS_UNKNOWN;
      cinfo->out_color_space = JCS_UNKNOWN;
  }
  return jpeg_start_decompress(cinfo) ? MM_JPEG_OK : MM_JPEG_TRUNCATED;
}

int mm_jpeg_rows(mm_jpeg* handle, uint8_t* out, size_t stride, uint32_t rows) {
  struct jpeg_decompress_struct* cinfo = &handle->cinfo;
  if (setjmp(handle->escape)) {
    return handle->status;
  }
  JDIMENSION end = cinfo->output_scanline + rows;
  JDIMENSION start = cinfo->output_scanline;
  while (cinfo->output_scanline < end) {
    JSAMPROW batch[BATCH];
    JDIMENSION count = end - cinfo->output_scanline;
    if (count > BATCH) {
      count = BATCH;
    }
    for (JDIMENSION i = 0; i < count; i++) {
      batch[i] = out + stride * (cinfo->output_scanline - start + i);
    }
    if (jpeg_read_scanlines(cinfo, batch, count) == 0) {
      return MM_JPEG_TRUNCATED;
    }
  }
  return MM_JPEG_OK;
}

int mm_jpeg_finish(mm_jpeg* handle) {
  if (setjmp(handle->escape)) {
    return handle->status;
  }
  (void)jpeg_finish_decompress(&handle->cinfo);
  return MM_JPEG_OK;
}

void mm_jpeg_close(mm_jpeg* handle) {
  jpeg_destroy_decompress(&handle->cinfo);
  free(handle);
}
